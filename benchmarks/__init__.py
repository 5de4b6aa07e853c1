"""Programs that measure ``ed_lib`` and write ``records/``.

python -m benchmarks ed --device auto --out records
"""

import os

# NumPy's matrix products here are too small to share among threads: sharing gains nothing on an
# idle machine and costs much on a busy one. To be set before NumPy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
