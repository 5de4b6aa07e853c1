/* The calculators of the page of that name. Each formula stands in ed_lib too, and a browser test compares the two.
   A form names its formula (data-formula); its fields are the formula's arguments. */
"use strict";
const ITEMS = { mixed: [2, 2, 12], float32: [4, 4, 8] }; // bytes a parameter: weights, gradients, Adam
const SHARED_FROM = { weights: 3, gradients: 2, optimizer: 1 }; // the stage of ZeRO

const formulas = {
  /* ed_lib.parallel.ledger: state, and activations of all layers. */
  memory({ parameters, format, devices, stage, layers, hidden, heads, tokens, sequences, recompute }) {
    const bytes = {};
    Object.entries(SHARED_FROM).forEach(([part, since], n) => {
      bytes[part] = (parameters * ITEMS[format][n]) / (stage >= since ? devices : 1);
    });
    const numbers = { none: 16 * hidden + heads * tokens, selective: 16 * hidden, full: hidden }[recompute];
    bytes.activations = layers * tokens * sequences * numbers * ITEMS[format][0];
    return bytes;
  },

  /* ed_lib.parallel.simulator.simulate: a forward pass of a micro-batch takes 1, a backward pass 2. */
  pipeline({ devices, microbatches, schedule, chunks }) {
    const parts = schedule === "interleaved" ? chunks : 1;
    const programs = Array.from({ length: devices }, (_, s) => program(schedule, s, devices, microbatches, parts));
    const times = { forward: 1 / parts, backward: 2 / parts, backward_input: 1, backward_weight: 1 };
    const clock = Array(devices).fill(0), next = Array(devices).fill(0), ends = new Map(), events = [];
    for (let moved = true; moved; ) {
      moved = false;
      for (let s = 0; s < devices; s++)
        while (next[s] < programs[s].length) {
          const [op, i, c] = programs[s][next[s]], k = c * devices + s; // its place in the chain
          const back = op.startsWith("backward");
          const waits = op === "backward_weight" || k + (back ? 1 : -1) === (back ? devices * parts : -1)
            ? 0 : ends.get(`${back}, ${i}, ${k + (back ? 1 : -1)}`);
          if (waits === undefined) break;
          const start = Math.max(clock[s], waits);
          clock[s] = start + times[op];
          if (op !== "backward_weight") ends.set(`${back}, ${i}, ${k}`, clock[s]);
          events.push({ stage: s, op, microbatch: i, chunk: c, start, end: clock[s] });
          next[s]++;
          moved = true;
        }
    }
    const seconds = Math.max(...clock);
    const work = events.reduce((sum, event) => sum + event.end - event.start, 0);
    const live = programs.map(steps => {
      let now = 0;
      return Math.max(...steps.map(([op]) => (now += { forward: 1, backward: -1, backward_weight: -1 }[op] ?? 0)));
    });
    return { seconds, busy: work / (devices * seconds), live, events };
  },

  /* ed_lib.roofline.Ceilings.floor of a whole step, beside which the host makes its calls. Kernels run one after
     another, so their own floors add up to something between "floor" and "apart". */
  step({ flops, bytes, calls, rate, bandwidth, each, measured }) {
    const parts = { calls: calls * each, "memory traffic": bytes / bandwidth, arithmetic: flops / rate };
    const floor = Math.max(...Object.values(parts));
    const apart = Math.max(parts.calls, parts["memory traffic"] + parts.arithmetic);
    return { ...parts, floor, apart, times: measured / floor };
  },

  /* ed_lib.roofline.Ceilings.floor */
  roofline({ bytes, flops, bandwidth, rate }) {
    return { moving: bytes / bandwidth, computing: flops / rate, seconds: Math.max(bytes / bandwidth, flops / rate) };
  },

  /* ed_lib.parallel.links: all_reduce by a ring, two_levels; ledger.sent at stage 3, beside 6 FLOP a parameter and
     token. */
  traffic({ parameters, itemsize, devices, server, alpha, inside, between, rate }) {
    const ring = (bytes, p, bandwidth) => 2 * (p - 1) * alpha + ((2 * (p - 1)) / p) * (bytes / bandwidth);
    const bytes = parameters * itemsize, servers = devices / server;
    const flat = ring(bytes, devices, servers > 1 ? between : inside);
    const fsdp = (3 * (devices - 1) * bytes) / devices / (servers > 1 ? between : inside);
    return {
      flat, two_levels: ring(bytes, server, inside) + ring(bytes / server, servers, between),
      fsdp, tokens: (fsdp * rate) / (6 * parameters),
    };
  },
};

/* A stage's computations in order, [op, micro-batch, chunk]: as ed_lib.parallel.schedules has them. */
function program(schedule, stage, p, m, chunks) {
  const all = Array.from({ length: m }, (_, i) => i), last = p - 1 - stage;
  if (schedule === "gpipe") return [...all.map(i => ["forward", i, 0]), ...all.map(i => ["backward", i, 0])];
  let there = all.map(i => [i, 0]), back = there, ahead = Math.min(m, last);
  if (schedule === "interleaved") {
    const order = parts => all.filter(i => i % p === 0).flatMap(
      first => parts.flatMap(c => all.slice(first, first + p).map(i => [i, c])));
    const parts = Array.from({ length: chunks }, (_, c) => c);
    there = order(parts);
    back = order(parts.reverse());
    ahead = Math.min(there.length, 2 * last + (chunks - 1) * p);
  }
  const late = schedule === "zb_h1" ? stage : 0, steps = there.slice(0, ahead).map(each => ["forward", ...each]);
  back.forEach((each, n) => {
    if (n + ahead < there.length) steps.push(["forward", ...there[n + ahead]]);
    steps.push([schedule === "zb_h1" ? "backward_input" : "backward", ...each]);
    if (schedule === "zb_h1" && n >= late) steps.push(["backward_weight", n - late, 0]);
  });
  if (schedule === "zb_h1") all.slice(Math.max(0, m - late)).forEach(i => steps.push(["backward_weight", i, 0]));
  return steps;
}

/* Bytes a second to memory, and FLOP a second. Measured: the ceilings of the book's records. Data sheets without
   sparsity. */
const CARDS = {
  "H100 SXM, bfloat16 (data sheet)": "3.35e12 989e12",
  "H100 SXM, TF32 (data sheet)": "3.35e12 495e12",
  "H100 SXM, float32 (data sheet)": "3.35e12 67e12",
  "H100 SXM, bfloat16 (measured)": "3.00e12 844e12",
  "H100 SXM, float32 (measured)": "3.01e12 51.8e12",
  "H200 SXM, bfloat16 (data sheet)": "4.8e12 989e12",
  "H200 SXM, TF32 (data sheet)": "4.8e12 495e12",
  "A100 80 GB, bfloat16 (data sheet)": "2.039e12 312e12",
  "A100 80 GB, TF32 (data sheet)": "2.039e12 156e12",
  "A100 80 GB, float32 (data sheet)": "2.039e12 19.5e12",
  "T4, float16 (data sheet)": "320e9 65e12",
  "T4, float32 (data sheet)": "320e9 8.1e12",
  "RTX 3070, float32 (data sheet)": "448e9 20.3e12",
  "RTX 3070, float64 (data sheet)": "448e9 0.317e12",
};
/* From here on: what is typed, and what is shown. */
const PREFIXES = { "": 1, K: 1e3, M: 1e6, G: 1e9, B: 1e9, T: 1e12, P: 1e15 };

const WORDS = { thousand: "K", million: "M", billion: "B", trillion: "T" };
/* Digits, in groups of three or in one piece; a fraction; an exponent; a letter. */
const NUMBER = /^(?=[-+]?\.?\d)([-+]?(?:\d{1,3}(?:[, ]\d{3})+|\d*)(?:\.\d+)?(?:e[-+]?\d+)?) *([KMGBTP]?)$/i;
const WITH_COMMA = /^\d{1,4},\d{1,4} ?[KMGBTP]?$/i; // a decimal comma, not one of 16,384
const IN_WORDS = /^(\d[\d.]{0,5}) *(thousand|million|billion|trillion)s?$/i;

/* The value of a field, or what is wrong with it, in words that fit below the field: "70B", "1.5e9" and "16,384" are
   numbers. "7,5B" may mean 7.5B, so it is none. */
function read(field) {
  if (field.localName === "select") return /^\d+$/.test(field.value) ? +field.value : field.value;
  const text = field.value.normalize("NFKC").replace(/\s+/g, " ").trim(); // digits of full width become plain ones
  const { min = "0", max = "1e18", whole } = field.dataset;
  const found = text.match(NUMBER), words = text.match(IN_WORDS);
  if (WITH_COMMA.test(text) && !found) throw `Wanted a point: write ${text.replace(",", ".")}.`;
  if (words) throw `Wanted a number: write ${words[1]}${WORDS[words[2].toLowerCase()]}.`;
  if (!found) throw `Wanted a number, like ${field.defaultValue}.`;
  const value = found[1].replace(/[, ]/g, "") * PREFIXES[found[2].toUpperCase()];
  if (!(value >= min)) throw `Wanted ${min} or more.`;
  if (!(value <= max)) throw `Wanted ${max} at most.`;
  if (whole !== undefined && value % 1) throw "Wanted a whole number.";
  return value;
}

const scaled = (value, unit, step = 1000) => {
  const names = step === 1000 ? ["", "k", "M", "G", "T", "P", "E", "Z", "Y"] : ["", "m", "µ", "n", "p"];
  const n = step === 1000 ? Math.floor(Math.log10(Math.max(value, 1)) / 3) : Math.ceil(-Math.log10(value || 1) / 3);
  const place = Math.min(Math.max(n, 0), names.length - 1);
  return `${+(value * (step === 1000 ? 1000 ** -place : 1000 ** place)).toPrecision(3)} ${names[place]}${unit}`;
};
const time = value => (value >= 1 ? `${(+value.toPrecision(3)).toLocaleString("en")} s` : scaled(value, "s", 0.001));
const COLOURS = { forward: "#2f8fd0", backward: "#dc7a12", backward_input: "#dc7a12", backward_weight: "#8a9099" };

const shows = {
  step({ floor, apart, times, ...parts }) {
    const bound = Object.keys(parts).find(name => parts[name] === floor);
    const rows = Object.entries(parts).map(([name, part]) => `<tr><th scope="row">${name}</th><td><meter min="0" max="1"
      value="${part / floor}" aria-label="${name}, as a share of the floor"></meter> ${time(part)}</td></tr>`);
    const kernels = apart > floor
      ? ` Its kernels run one after another, so their own floors may add up to as much as ${time(apart)}.` : "";
    const ratio = (+times.toPrecision(3)).toLocaleString("en"), share = +(100 / times).toPrecision(2);
    const said = times < 1
      ? "Your step is below its floor. That cannot be: a count is too high, or the clock does not wait for the GPU."
      : `Your step takes <b>${ratio} times</b> its floor: the floor is ${share}% of its time. As long as
         these three stay what they are, no cure makes the step more than ${ratio} times as fast.`;
    return `<p>The step's floor is <b>${time(floor)}</b>, the time of its ${bound}.${kernels}</p>
      <table>${rows.join("")}</table><p>${said}</p>`;
  },
  memory(bytes) {
    const whole = Object.values(bytes).reduce((sum, part) => sum + part, 0);
    const parts = Object.entries(bytes).map(([name, part]) => `${name} ${scaled(part, "B")}`).join(", ");
    const rows = [16e9, 24e9, 80e9, 141e9].map(card => {
      const share = Math.min(1, whole / card);
      const words = whole > card ? "does not fit" : `${Math.round(100 * share)}% full`;
      return `<tr><th scope="row">${card / 1e9} GB</th><td><meter min="0" low="0.8" high="0.999" max="1" optimum="0"
        value="${share}" aria-label="of ${card / 1e9} GB"></meter> ${words}</td></tr>`;
    });
    return `<p><b>${scaled(whole, "B")}</b> a device: ${parts}.</p><table>${rows.join("")}</table>`;
  },
  pipeline({ seconds, busy, live, events }) {
    const p = live.length, height = Math.max(6, Math.min(24, 240 / p)), unit = 600 / seconds;
    const bars = events.map(({ stage, op, chunk, start, end }) => `<rect x="${start * unit}" y="${stage * height}"
      width="${Math.max((end - start) * unit - 0.4, 0.2)}" height="${height - 1}" fill="${COLOURS[op]}"
      opacity="${chunk % 2 ? 0.6 : 1}"/>`);
    const percent = Math.round(100 * busy);
    const said = `${percent}% of the time the devices compute, ${100 - percent}% is the bubble`;
    return `<p><b>${said}.</b> A device holds the activations of ${Math.max(...live)} micro-batches (or parts of them)
      at most.</p><svg role="img" aria-label="Timeline of ${p} devices: ${said}"
      viewBox="0 0 600 ${p * height}">${bars.join("")}</svg>
      <p>Rows are devices, from left to right goes time: forward blue, backward orange, weights' gradients grey.</p>`;
  },
  roofline({ moving, computing, seconds }) {
    const [bound, other] = computing >= moving ? ["FLOPs", moving] : ["bytes", computing];
    return `<p><b>${time(seconds)}</b> at the least, bound by its ${bound}: the other takes ${time(other)}.</p>`;
  },
  traffic({ flat, two_levels, fsdp, tokens }) {
    return `<p>An all-reduce of all gradients takes <b>${time(flat)}</b> by one ring, ${time(two_levels)} by rings
      inside servers and between them. FSDP sends for ${time(fsdp)} a step, which computing hides from
      <b>${Math.ceil(tokens).toLocaleString("en")} tokens</b> a device on.</p>`;
  },
};

/* What fits together only with another field. */
const rules = {
  memory: ({ hidden, heads }) => hidden % heads && ["heads", `Wanted a divisor of ${hidden}.`],
  pipeline: ({ schedule, devices, microbatches }) => schedule === "interleaved" && (devices < 2
    ? ["devices", "Interleaved wants two or more."]
    : microbatches % devices && ["microbatches", `Interleaved: a multiple of ${devices}.`]),
  traffic: ({ devices, server }) => devices % server && ["server", `Wanted a divisor of ${devices}.`],
};

const isCard = field => field.dataset.sets !== undefined; // a choice that only fills in other fields
const fieldsOf = form => [...form.querySelectorAll("[name]")];
const nameOf = field => field.closest("label").firstChild.textContent.trim();

function answer(form) {
  const values = {}, output = form.querySelector("output"), fields = fieldsOf(form), wrong = new Map();
  for (const field of fields)
    try {
      values[field.name] = read(field);
    } catch (words) {
      wrong.set(field.name, words);
    }
  const clash = !wrong.size && rules[form.dataset.formula]?.(values);
  if (clash) wrong.set(...clash);
  for (const field of fields) {
    field.setAttribute("aria-invalid", wrong.has(field.name));
    document.getElementById(field.getAttribute("aria-describedby")).textContent = wrong.get(field.name) ?? "";
    if (isCard(field)) // the card whose numbers stand in the fields
      field.value = [...field.options].find(({ value }) => value && value.split(" ").every(
        (number, n) => +number === values[field.dataset.sets.split(" ")[n]]))?.value ?? "";
  }
  // What stands below stays where it is while a field is wrong.
  output.style.minHeight = wrong.size ? `${output.getBoundingClientRect().height}px` : "";
  const [first, ...others] = fields.filter(({ name }) => wrong.has(name)).map(nameOf);
  if (first) output.textContent = `No answer: see ${first}${others.length ? ` and ${others.length} more` : ""}.`;
  else output.innerHTML = shows[form.dataset.formula](formulas[form.dataset.formula](values));
  return !wrong.size;
}

/* The address holds all fields of each calculator in which something was changed, as "memory.parameters=70B". */
function remember(form) {
  const asked = new URLSearchParams(location.search), formula = form.dataset.formula;
  for (const key of [...asked.keys()]) if (key.startsWith(`${formula}.`)) asked.delete(key);
  const fields = fieldsOf(form).filter(field => !isCard(field));
  const chosen = options => (options.find(({ defaultSelected }) => defaultSelected) ?? options[0]).value;
  const start = field => field.defaultValue ?? chosen([...field.options]);
  if (fields.some(field => field.value !== start(field)))
    for (const field of fields) asked.set(`${formula}.${field.name}`, field.value);
  form.querySelector(".address")?.remove(); // it spoke of the old one
  const query = `${asked}` ? `?${asked}` : "", section = form.closest("section").id;
  try {
    history.replaceState(history.state, "", `${location.pathname}${query}#${section}`);
  } catch {} // a browser may refuse: the page goes on without it
}

/* Fills in what the address holds. What it cannot hold is left out, and said in a line. */
function restore(forms) {
  const short = text => (text.length > 24 ? `${text.slice(0, 24)}…` : text);
  const say = (form, words) => {
    form.querySelector(".address")?.remove();
    const line = { className: "address", role: "alert", textContent: words };
    form.prepend(Object.assign(document.createElement("p"), line));
  };
  for (const [key, text] of new URLSearchParams(location.search)) {
    const [, formula, name] = key.match(/^([^.]*)\.(.*)$/) ?? [];
    if (formula === undefined) continue; // none of ours
    const form = forms.find(({ dataset }) => dataset.formula === formula);
    const field = form && fieldsOf(form).find(field => field.name === name && !isCard(field));
    if (!form) say(forms[0], `The address names a calculator “${short(formula)}”. There is none.`);
    else if (!field) say(form, `The address names a field “${short(name)}”. This calculator has none.`);
    else if (field.options ? ![...field.options].some(({ value }) => value === text) : text.length > 40)
      say(form, `The address has “${short(text)}” for the field “${nameOf(field)}”, which cannot hold it.`);
    else field.value = text;
  }
}

{
  const forms = [...document.querySelectorAll("form[data-formula]")];
  restore(forms);
  for (const form of forms) {
    for (const field of fieldsOf(form)) {
      const [box, words] = ["div", "small"].map(kind => document.createElement(kind)), label = field.closest("label");
      words.id = `${form.dataset.formula}-${field.name}-wrong`;
      field.setAttribute("aria-describedby", words.id);
      label.replaceWith(box);
      box.append(label, words); // beside the label, which is the field's name
      if (!isCard(field)) continue;
      Object.entries(CARDS).forEach(([name, numbers]) => field.add(new Option(name, numbers)));
      // Before the form hears of it, and takes the choice back to what the fields hold.
      field.addEventListener("input", () => field.value && field.dataset.sets.split(" ").forEach(
        (name, n) => { form.elements[name].value = field.value.split(" ")[n]; }));
    }
    form.addEventListener("submit", event => event.preventDefault());
    form.addEventListener("input", () => answer(form));
    form.addEventListener("change", () => answer(form) && remember(form));
    answer(form);
  }
}
