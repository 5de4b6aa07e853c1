/* The figure of a toy device with a button that lets it run: the call returns, the kernels go on. tools/hero.py puts
   it into a page. The device is a model in round numbers, and a millisecond of it takes a second. */
"use strict";
{
  const KERNELS = 3;
  const LAUNCH = 0.03; // ms of Python's time for each kernel
  const KERNEL = 1; // ms of the device's time
  const SHOWN = 3.4; // ms across the whole width
  const MS = 1000; // what a millisecond takes here, in milliseconds

  /* When the call returns, when each kernel runs, when the clock stops and when the device is done, all in ms. */
  function model(waits) {
    const kernels = [];
    for (let n = 0; n < KERNELS; n++) {
      const start = Math.max((n + 1) * LAUNCH, kernels.at(-1)?.end ?? 0);
      kernels.push({ start, end: start + KERNEL });
    }
    const returned = KERNELS * LAUNCH, done = kernels.at(-1).end;
    return { kernels, returned, done, stopped: waits ? done : returned };
  }

  const ms = time => `${time.toFixed(2)} ms`;
  const times = run => `${(run.done / run.stopped).toFixed(run.done > 1.5 * run.stopped ? 0 : 1)} ×`;
  const percent = time => `${(100 * time) / SHOWN}%`;

  /* What is said when the call has returned, and when the device is done. */
  const words = (run, waits) => waits
    ? ["The call has returned. Python waits for the device before it reads the clock.",
       `The device is done after ${ms(run.done)}, and the clock shows ${ms(run.stopped)}.`]
    : [`The call has returned, and the clock stopped at ${ms(run.stopped)}. The device still works.`,
       `The device is done after ${ms(run.done)}, ${times(run).replace(" ×", " times")} what the clock shows.`];

  function element(name, attributes = {}, ...inside) {
    const drawn = ["svg", "g", "rect", "text", "line"].includes(name);
    const made = drawn ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...inside);
    return made;
  }

  const bar = (from, to, y, colour, opacity = 1) => element("rect", {
    x: percent(from), y, width: percent(Math.max(0, to - from)), height: 26, fill: `var(--${colour})`, opacity });
  const text = (time, y, said, attributes = {}) => element("text", { x: percent(time), y, ...attributes }, said);

  /* The two rows as they stand at this time. */
  function rows(run, waits, now) {
    const until = time => Math.min(time, now);
    const drawn = [text(0, 12, "Python"), bar(0, until(run.returned), 18, "host")];
    if (waits && now > run.returned) drawn.push(bar(run.returned, until(run.done), 18, "host", 0.35));
    if (waits && now > 1) drawn.push(text(run.returned + 0.1, 36, "Python waits"));
    if (now >= run.stopped) {
      const side = waits ? { dx: -6, "text-anchor": "end" } : { dx: 6 };
      drawn.push(element("line", { x1: percent(run.stopped), x2: percent(run.stopped), y1: 14, y2: 48 }));
      drawn.push(text(run.stopped, waits ? 12 : 36, "the clock stops", side));
    }
    drawn.push(text(0, 68, "Device"));
    run.kernels.filter(({ start }) => now > start).forEach(({ start, end }, n) => {
      drawn.push(bar(start, until(end), 74, "device"));
      if (now >= end)
        drawn.push(text((start + end) / 2, 92, `kernel ${n + 1}`, { "text-anchor": "middle", class: "on-bar" }));
    });
    drawn.push(element("line", { x1: 0, x2: "100%", y1: 108, y2: 108 }));
    for (let tick = 0; tick < SHOWN; tick++)
      drawn.push(text(tick, 124, tick ? `${tick} ms` : "0", tick ? { "text-anchor": "middle" } : {}));
    return drawn;
  }

  function start(figure) {
    const button = element("button", { type: "button" }, "Run");
    const wait = element("input", { type: "checkbox", role: "switch" });
    const drawing = element("svg", { role: "img", height: 130 });
    const shown = ["Python’s clock shows", "The work takes", "Ratio of the two"].map(name => {
      const value = element("dd");
      return { value, both: element("div", {}, element("dt", {}, name), value) };
    });
    const said = element("p", { role: "status" });
    const controls = element("div", { class: "controls" }, button, element("label", {}, wait, " Wait for the device"));
    const note = element("p", { class: "note" },
      "In slow motion: a millisecond takes a second. "
        + `This Python needs ${LAUNCH} ms to launch a kernel, and this device ${KERNEL} ms to run it.`);
    figure.querySelector("figcaption").before(element("div", { class: "live" }, controls, drawing,
      element("dl", {}, ...shown.map(each => each.both)), said, note));
    figure.classList.add("is-live");

    let frame; // of the run that is shown; there is one at most
    const show = (run, now) => {
      drawing.replaceChildren(...rows(run, wait.checked, now));
      const ends = [Math.min(now, run.stopped), Math.min(now, run.done)].map(ms);
      [...ends, now < run.done ? "…" : times(run)].forEach((value, n) => { shown[n].value.textContent = value; });
      drawing.setAttribute("aria-label", now < run.done ? "A time line of Python and the device, which are at work."
        : `A time line. Python’s call takes ${ms(run.returned)}${wait.checked ? " and then Python waits" : ""}; the `
          + `clock stops at ${ms(run.stopped)}. The device runs ${KERNELS} kernels until ${ms(run.done)}.`);
    };
    const say = line => { if (said.textContent !== line) said.textContent = line; };

    /* Whatever is touched, a new run begins, and the one before is over. */
    const play = () => {
      cancelAnimationFrame(frame);
      const run = model(wait.checked), [early, late] = words(run, wait.checked), began = performance.now();
      const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
      say("");
      const step = () => {
        const now = still ? run.done : Math.min(run.done, (performance.now() - began) / MS);
        show(run, now);
        if (now >= run.returned && (now < run.done || still)) say(early);
        if (now >= run.done) say(still ? `${early.replace(" The device still works.", "")} ${late}` : late);
        else frame = requestAnimationFrame(step);
      };
      step();
    };
    button.addEventListener("click", play);
    wait.addEventListener("change", play);

    wait.checked = false; // whatever a browser remembers of the page
    const run = model(false);
    show(run, run.done);
    say("Press Run, and watch when the clock stops.");
  }

  document.querySelectorAll("figure.hero").forEach(start);
}
