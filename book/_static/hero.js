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

  /* What is said, by the language of the page's part that the figure stands in. */
  const WORDS = {
    en: {
      run: "Run",
      wait: "Wait for the device",
      shown: ["Python’s clock shows", "The work takes", "Ratio of the two"],
      first: "Press Run, and watch when the clock stops.",
      note: "In slow motion: a millisecond takes a second. "
        + `This Python needs ${LAUNCH} ms to launch a kernel, and this device ${KERNEL} ms to run it.`,
      device: "Device",
      kernel: n => `kernel ${n}`,
      waits: "Python waits",
      stops: "the clock stops",
      returned: clock => `The call has returned, and the clock stopped at ${clock}.`,
      goesOn: " The device still works.",
      done: (end, ratio) => `The device is done after ${end}, ${ratio} times what the clock shows.`,
      returnedWaits: "The call has returned. Python waits for the device before it reads the clock.",
      doneWaits: (end, clock) => `The device is done after ${end}, and the clock shows ${clock}.`,
      atWork: "A time line of Python and the device, which are at work.",
      line: (call, waits, clock, end) => `A time line. Python’s call takes ${call}${waits ? " and then Python waits" : ""}; `
        + `the clock stops at ${clock}. The device runs ${KERNELS} kernels until ${end}.`,
    },
    ja: {
      run: "実行",
      wait: "デバイスを待つ",
      shown: ["Python の時計", "処理にかかる時間", "両者の比"],
      first: "「実行」を押して、時計がいつ止まるかをご覧ください。",
      note: "スローモーションです（1 ミリ秒を 1 秒で表示）。"
        + `Python はカーネルの起動に ${LAUNCH} ms、デバイスはその実行に ${KERNEL} ms かかります。`,
      device: "デバイス",
      kernel: n => `カーネル ${n}`,
      waits: "Python は待つ",
      stops: "時計が止まる",
      returned: clock => `呼び出しは戻り、時計は ${clock} で止まりました。`,
      goesOn: "デバイスはまだ計算しています。",
      done: (end, ratio) => `デバイスは ${end} で終わりました。時計が示す時間の ${ratio} 倍です。`,
      returnedWaits: "呼び出しは戻りました。Python は、時計を読む前にデバイスを待ちます。",
      doneWaits: (end, clock) => `デバイスは ${end} で終わり、時計は ${clock} を示します。`,
      atWork: "Python とデバイスの時間の図。どちらも動いています。",
      line: (call, waits, clock, end) => `時間の図。Python の呼び出しは ${call} かかり${waits ? "、そのあと Python は待ち" : ""}、`
        + `時計は ${clock} で止まります。デバイスは ${KERNELS} 個のカーネルを ${end} まで実行します。`,
    },
  };

  const ms = time => `${time.toFixed(2)} ms`;
  const ratio = run => (run.done / run.stopped).toFixed(run.done > 1.5 * run.stopped ? 0 : 1);
  const percent = time => `${(100 * time) / SHOWN}%`;

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
  function rows(words, run, waits, now) {
    const until = time => Math.min(time, now);
    const drawn = [text(0, 12, "Python"), bar(0, until(run.returned), 18, "host")];
    if (waits && now > run.returned) drawn.push(bar(run.returned, until(run.done), 18, "host", 0.35));
    if (waits && now > 1) drawn.push(text(run.returned + 0.1, 36, words.waits));
    if (now >= run.stopped) {
      const side = waits ? { dx: -6, "text-anchor": "end" } : { dx: 6 };
      drawn.push(element("line", { x1: percent(run.stopped), x2: percent(run.stopped), y1: 14, y2: 48 }));
      drawn.push(text(run.stopped, waits ? 12 : 36, words.stops, side));
    }
    drawn.push(text(0, 68, words.device));
    run.kernels.filter(({ start }) => now > start).forEach(({ start, end }, n) => {
      drawn.push(bar(start, until(end), 74, "device"));
      if (now >= end)
        drawn.push(text((start + end) / 2, 92, words.kernel(n + 1), { "text-anchor": "middle", class: "on-bar" }));
    });
    drawn.push(element("line", { x1: 0, x2: "100%", y1: 108, y2: 108 }));
    for (let tick = 0; tick < SHOWN; tick++)
      drawn.push(text(tick, 124, tick ? `${tick} ms` : "0", tick ? { "text-anchor": "middle" } : {}));
    return drawn;
  }

  function start(figure) {
    const words = WORDS[figure.closest("[lang]").lang] ?? WORDS.en;
    const button = element("button", { type: "button" }, words.run);
    const wait = element("input", { type: "checkbox", role: "switch" });
    const drawing = element("svg", { role: "img", height: 130 });
    const shown = words.shown.map(name => {
      const value = element("dd");
      return { value, both: element("div", {}, element("dt", {}, name), value) };
    });
    const said = element("p", { role: "status" });
    const controls = element("div", { class: "controls" }, button, element("label", {}, wait, ` ${words.wait}`));
    const note = element("p", { class: "note" }, words.note);
    figure.querySelector("figcaption").before(element("div", { class: "live" }, controls, drawing,
      element("dl", {}, ...shown.map(each => each.both)), said, note));
    figure.classList.add("is-live");

    let frame; // of the run that is shown; there is one at most
    const show = (run, now) => {
      drawing.replaceChildren(...rows(words, run, wait.checked, now));
      const ends = [Math.min(now, run.stopped), Math.min(now, run.done)].map(ms);
      [...ends, now < run.done ? "…" : `${ratio(run)} ×`].forEach((value, n) => { shown[n].value.textContent = value; });
      drawing.setAttribute("aria-label", now < run.done ? words.atWork
        : words.line(ms(run.returned), wait.checked, ms(run.stopped), ms(run.done)));
    };
    const say = line => { if (said.textContent !== line) said.textContent = line; };

    /* Whatever is touched, a new run begins, and the one before is over. */
    const play = () => {
      cancelAnimationFrame(frame);
      const run = model(wait.checked), began = performance.now();
      const end = ms(run.done), clock = ms(run.stopped);
      const [early, goesOn, late] = wait.checked ? [words.returnedWaits, "", words.doneWaits(end, clock)]
        : [words.returned(clock), words.goesOn, words.done(end, ratio(run))];
      const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
      say("");
      const step = () => {
        const now = still ? run.done : Math.min(run.done, (performance.now() - began) / MS);
        show(run, now);
        if (now >= run.returned && (now < run.done || still)) say(early + goesOn);
        if (now >= run.done) say(still ? `${early} ${late}` : late);
        else frame = requestAnimationFrame(step);
      };
      step();
    };
    button.addEventListener("click", play);
    wait.addEventListener("change", play);

    wait.checked = false; // whatever a browser remembers of the page
    const run = model(false);
    show(run, run.done);
    say(words.first);
  }

  document.querySelectorAll("figure.hero").forEach(start);
}
