"""Part III's entries in the table of bad input, tests/test_doors.py."""

from functools import partial

import torch
from torch import nn

from ed_lib import models
from ed_lib.precision import minilm, weight_only
from ed_lib.precision.autocasting import autocast
from ed_lib.precision.compression import keep_filters
from ed_lib.precision.formats import nearest, values
from ed_lib.precision.low_bit_training import (
    RECIPES,
    Bfloat16Weights,
    Scaling,
    low_bits,
    scaled,
)
from ed_lib.precision.quantization import choose_scale, quantize, quantize_model
from ed_lib.precision.scaler import GradScaler
from ed_lib.precision.weight_only import Linear4

X, NAN, LENET, MLP = (
    torch.rand(3, 4),
    torch.tensor([[float("nan")]]),
    models.lenet(),
    models.mlp((4, 2)),
)
ONES = torch.ones(2, requires_grad=True)
SQUARE = torch.ones(16, 16)
SHARED = nn.Linear(4, 4)
SGD = partial(torch.optim.SGD, lr=0.1)
BERT = dict(layers=1, hidden=4, heads=1, vocabulary=3, positions=2)
SMALL = models.Encoder(**BERT, eps=minilm.EPS)
PAIRS = minilm.Examples([torch.tensor([1])] * 2, [torch.tensor([0])] * 2, torch.tensor([0, 3]))


def scaler(**arguments):
    return lambda: GradScaler(**{"device": "cpu"} | arguments)


def state(**changes):
    return lambda: GradScaler("cpu").load_state_dict(GradScaler("cpu").state_dict() | changes)


def update(scale):
    one = GradScaler("cpu")
    one.scale(X)
    one.update(scale)


def few_bits(call):
    with low_bits(RECIPES["NVFP4"], {"w": SQUARE}):
        call()


def emulated(call):
    with autocast():
        call()


PRECISION = [
    (
        "a format that is none",
        lambda: nearest(X, "fp16"),
        ValueError,
        "format is 'fp16'; wanted one of '",
    ),
    (
        "float64",
        lambda: nearest(X.double(), "e4m3"),
        TypeError,
        "x is of torch.float64; wanted a tensor of",
    ),
    ("a gradient to round", lambda: nearest(ONES, "e4m3"), ValueError, "wanted x.detach()"),
    (
        "values of float32",
        lambda: values("float32"),
        ValueError,
        "format is 'float32'; wanted one of",
    ),
    ("Scaling's format", lambda: Scaling("int8"), ValueError, "format is 'int8'"),
    ("Scaling's scale", lambda: Scaling(scale="half"), ValueError, "scale is 'half'"),
    ("a scale for bfloat16", lambda: Scaling("bfloat16"), ValueError, "wanted 'none' for bfloat16"),
    ("Scaling's block", lambda: Scaling(block=(1, 0)), ValueError, "block is 0"),
    (
        "no matrix",
        lambda: scaled(X[0], Scaling()),
        ValueError,
        "shape (4,); wanted a matrix of float32",
    ),
    (
        "blocks that do not fit",
        lambda: scaled(X, Scaling(block=(1, 3))),
        ValueError,
        "(3, 4); wanted a",
    ),
    (
        "bfloat16 weights",
        lambda: Bfloat16Weights(SGD([ONES]), "up"),
        ValueError,
        "how is 'up'; wanted",
    ),
    (
        "GradScaler's device",
        scaler(device="tpu"),
        ValueError,
        "device is 'tpu'; wanted one of 'cuda', 'cpu'",
    ),
    (
        "an infinite scale",
        scaler(init_scale=1e39),
        ValueError,
        ["init_scale is 1e", "in float32 inf"],
    ),
    (
        "a scale of 0",
        scaler(init_scale=0),
        ValueError,
        "init_scale is 0; wanted a finite number above 0",
    ),
    (
        "a scale that is a text",
        scaler(init_scale="8"),
        TypeError,
        "init_scale is '8'; wanted a number",
    ),
    ("growth by 1", scaler(growth_factor=1.0), ValueError, "growth_factor is 1.0; wanted a number"),
    (
        "backoff by 1",
        scaler(backoff_factor=1.0),
        ValueError,
        "backoff_factor is 1.0; wanted a number",
    ),
    (
        "an interval of 0",
        scaler(growth_interval=0),
        ValueError,
        "growth_interval is 0; wanted at least 1",
    ),
    (
        "a disabled scaler's state",
        lambda: GradScaler("cpu").load_state_dict({}),
        RuntimeError,
        "lacks _growth_tracker, backoff_factor, growth_factor",
    ),
    ("a state with a bad scale", state(scale=-1.0), ValueError, "scale is -1.0"),
    ("update to 0", lambda: update(0.0), ValueError, "new_scale is 0.0"),
    ("update to two numbers", lambda: update(torch.ones(2)), RuntimeError, "2 elements"),
    (
        "what is no tensor",
        lambda: GradScaler("cpu").scale([X, 1]),
        TypeError,
        "outputs has a int; wanted",
    ),
    (
        "no optimizer",
        lambda: GradScaler("cpu").step([X]),
        TypeError,
        "optimizer is a list; wanted an",
    ),
    (
        "autocast's dtype",
        lambda: autocast("float16"),
        ValueError,
        "dtype is 'float16'; wanted one of torch.",
    ),
    (
        "BCE",
        lambda: emulated(lambda: nn.BCELoss()(X, X)),
        RuntimeError,
        "wanted binary_cross_entropy_with",
    ),
    (
        "attention of several classes",
        lambda: emulated(lambda: nn.MultiheadAttention(4, 2)(X, X, X)),
        RuntimeError,
        "multi_head_attention_forward is made of operations of several classes",
    ),
    ("a whole LSTM", lambda: emulated(lambda: nn.LSTM(4, 2)(X)), RuntimeError, "lstm is made of"),
    (
        "a product into out",
        lambda: few_bits(lambda: torch.matmul(SQUARE, SQUARE, out=torch.empty(16, 16))),
        ValueError,
        "the product with w has out; wanted one without",
    ),
    (
        "seventeen rows to mix",
        lambda: few_bits(lambda: torch.ones(17, 16) @ SQUARE),
        ValueError,
        "x has 17 rows; wanted a multiple of 16",
    ),
    (
        "a number to quantize",
        lambda: choose_scale(X[0, 0]),
        ValueError,
        "weight has the shape (); wanted rows",
    ),
    (
        "a vector to quantize",
        lambda: choose_scale(X[0]),
        ValueError,
        "weight has the shape (4,); wanted rows",
    ),
    (
        "attention to quantize",
        lambda: quantize_model(nn.TransformerEncoderLayer(2, 1, 2)),
        ValueError,
        "model's outside is a TransformerEncoderLayer, which reads weights itself",
    ),
    (
        "attention inside",
        lambda: quantize_model(nn.Sequential(MLP, nn.MultiheadAttention(2, 1))),
        ValueError,
        "model's 1 is a MultiheadAttention, which reads weights itself; wanted layers",
    ),
    (
        "float64 to quantize",
        lambda: choose_scale(X.double()),
        TypeError,
        "weight is of torch.float64;",
    ),
    ("nothing to quantize", lambda: choose_scale(X[:0]), ValueError, "weight (0, 4) is empty"),
    ("NaN to quantize", lambda: quantize(NAN, X[:1, :1], 8), ValueError, "NaN or infinity"),
    ("nine bits", lambda: choose_scale(X, 9), ValueError, "bits is 9; wanted one of 2, "),
    (
        "a span that is none",
        lambda: choose_scale(X, 8, "all"),
        ValueError,
        "span is 'all'; wanted one of",
    ),
    (
        "nothing but a ReLU",
        lambda: quantize_model(nn.ReLU()),
        ValueError,
        "no Conv2d or Linear layer inside",
    ),
    (
        "quantized twice",
        lambda: quantize_model(quantize_model(MLP)),
        ValueError,
        "or is quantized; wanted",
    ),
    (
        "a last layer's filters",
        lambda: keep_filters(LENET, {"9": [0]}),
        ValueError,
        "'9'; wanted one of 0",
    ),
    (
        "no nn.Sequential",
        lambda: keep_filters(MLP[0], {}),
        TypeError,
        "model is a Linear; wanted an nn.Seq",
    ),
    ("no filter", lambda: keep_filters(LENET, {"0": []}), ValueError, "keep['0'] is []"),
    (
        "a filter that is none",
        lambda: keep_filters(LENET, {"0": [20]}),
        ValueError,
        "wanted some of 0 to 19",
    ),
    (
        "grouped filters",
        lambda: keep_filters(nn.Sequential(nn.Conv2d(2, 4, 1, groups=2), MLP[0]), {}),
        ValueError,
        "layer 0 has 2 groups",
    ),
    (
        "a filter that is half a number",
        lambda: keep_filters(LENET, {"0": [0.5]}),
        TypeError,
        "keep['0'] is 0.5; wanted a whole number",
    ),
    (
        "filters by a mask",
        lambda: keep_filters(LENET, {"0": [True, False]}),
        TypeError,
        "keep['0'] is True; wanted a whole number",
    ),
    *(
        (
            f"filters before {type(module).__name__}",
            lambda module=module: keep_filters(
                nn.Sequential(nn.Linear(1, 2), module, nn.Linear(2, 1)), {"0": [0]}
            ),
            ValueError,
            f"module 1, a {type(module).__name__}, stands behind the layer 0; wanted one",
        )
        for module in (
            nn.Sigmoid(),
            nn.Softplus(),
            nn.Softmax(1),
            nn.BatchNorm1d(2),
            nn.LayerNorm(2),
            nn.Sequential(nn.Linear(2, 2)),
            nn.PReLU(2),
            nn.Flatten(0),
            nn.Unflatten(1, (2, 1)),
        )
    ),
    *(
        (
            f"filters of {what}",
            lambda layers=layers: keep_filters(nn.Sequential(*layers), {"0": [0]}),
            ValueError,
            "that are not the 2 outputs of layer 0; wanted layers that follow each other",
        )
        for what, layers in {
            "images, not flat": (nn.Conv2d(1, 2, 1), nn.Linear(4, 3)),
            "tokens, flat": (nn.Linear(3, 2), nn.Flatten(), nn.Linear(8, 2)),
            "rows, as images": (nn.Linear(3, 2), nn.ReLU(), nn.Conv2d(2, 1, 1)),
        }.items()
    ),
    (
        "a weight in two layers",
        lambda: keep_filters(nn.Sequential(SHARED, nn.ReLU(), SHARED, MLP[0]), {"0": [0]}),
        ValueError,
        "model has a weight in two of its layers; wanted each once",
    ),
    (
        "no batch",
        lambda: minilm.finetune(SMALL, PAIRS, batch=0),
        ValueError,
        "batch is 0; wanted at least 1",
    ),
    (
        "no epoch",
        lambda: minilm.finetune(SMALL, PAIRS, epochs=0),
        ValueError,
        "epochs is 0; wanted at least 1",
    ),
    (
        "no pairs",
        lambda: minilm.finetune(SMALL, minilm.Examples([], [], torch.tensor([]))),
        ValueError,
        "train holds no pairs; wanted at least one",
    ),
    (
        "a batch of no sentence",
        lambda: minilm.embeddings(SMALL, PAIRS.tokens, batch=0),
        ValueError,
        "batch is 0; wanted at least 1",
    ),
    (
        "a label of no class",
        lambda: minilm.finetune(SMALL, PAIRS),
        ValueError,
        "labels run from 0 to 3",
    ),
    (
        "a BERT without tensors",
        lambda: minilm.load_bert(SMALL, {}),
        ValueError,
        "theirs lacks, or net has",
    ),
    (
        "a group that does not fit",
        lambda: weight_only.rtn(X, 4, 3),
        ValueError,
        "wanted a divisor of 4",
    ),
    *(
        (
            f"{what} in {kind}",
            lambda call=call, weight=weight: call(weight),
            error,
            words,
        )
        for kind, call in {
            "RTN": lambda weight: weight_only.rtn(weight, 4, 2),
            "GPTQ": lambda weight: weight_only.gptq(weight, torch.eye(2), 4, 2),
            "AWQ": lambda weight: weight_only.awq(weight, X[:, :2], 4, 2),
        }.items()
        for what, weight, error, words in (
            (
                "bfloat16",
                X[:, :2].bfloat16(),
                TypeError,
                "weight is of torch.bfloat16; wanted a tensor of float32",
            ),
            (
                "a span beyond float32",
                torch.tensor([[3e38, -3e38]]),
                ValueError,
                "weight spans more than float32's largest number within a group",
            ),
        )
    ),
    (
        "AWQ's inputs in bfloat16",
        lambda: weight_only.awq(X, X.bfloat16(), 4, 2),
        TypeError,
        "inputs is of torch.bfloat16; wanted a tensor of float32",
    ),
    (
        "infinity among AWQ's inputs",
        lambda: weight_only.awq(X, X / 0, 4, 2),
        ValueError,
        "inputs holds NaN or infinity",
    ),
    (
        "Linear4 of float64",
        lambda: Linear4(weight_only.rtn(torch.ones(16, 32), 4, 32))(torch.ones(1, 32).double()),
        TypeError,
        "x is of torch.float64; wanted one of torch.float32, torch.bfloat16",
    ),
    ("NaN among weights", lambda: weight_only.rtn(NAN, 4, 1), ValueError, "weight holds NaN"),
    (
        "a Hessian's shape",
        lambda: weight_only.gptq(X, X[:2, :2], 4, 2),
        ValueError,
        "hessian has the shape",
    ),
    ("a Hessian of NaN", lambda: weight_only.gptq(X[:, :1], NAN, 4, 1), ValueError, "holds NaN"),
    (
        "AWQ's inputs",
        lambda: weight_only.awq(X, X[:, :2], 4, 2),
        ValueError,
        "inputs has the shape (3, 2)",
    ),
    (
        "Linear4 of three bits",
        lambda: Linear4(weight_only.rtn(X, 3, 2)),
        ValueError,
        "few has 3 bits",
    ),
    ("codes of nine bits", lambda: quantize(X, X, 9), ValueError, "bits is 9; wanted one of 2, 3"),
    (
        "Linear4 with a bias for three",
        lambda: Linear4(weight_only.rtn(torch.ones(16, 32), 4, 32), torch.ones(3)),
        ValueError,
        "bias has the shape (3,); wanted (16,)",
    ),
    (
        "labels in a column",
        lambda: minilm.accuracy(SMALL, PAIRS._replace(labels=torch.zeros(2, 1).long())),
        ValueError,
        "test.labels has the shape (2, 1); wanted (2,)",
    ),
    (
        "three labels for two pairs",
        lambda: minilm.finetune(SMALL, PAIRS._replace(labels=torch.zeros(3).long())),
        ValueError,
        "train.labels has the shape (3,); wanted (2,)",
    ),
    (
        "Linear4 of three rows",
        lambda: Linear4(weight_only.rtn(torch.ones(3, 32), 4, 32)),
        ValueError,
        "groups of 32 and 3 rows; wanted 4, of 32",
    ),
]
