// The shell: forms, links, requests. Every number comes from the server as text; none is computed here.
import { html, render, useEffect, useRef, useState } from "/assets/preact-htm.js";
import { Combobox } from "/assets/combobox.js";
import { tipped } from "/assets/tips.js";

const NARROW = matchMedia("(max-width:52rem)");
const LAST_ANSWERS = 5;
const LAYOUT_PARTS = 3; // of a layout, when more are given they are one thing to let go of
const get = async (path, signal, given) => {
  const reply = await fetch(path, { signal, headers: { accept: "application/json" }, ...given });
  const body = await reply.json();
  const said = body.document && body.document.error ? body.document : body;
  const faults = body.faults || (said.error ? [said] : []);
  if (faults.length) throw Object.assign(new Error(faults[0].error), { hint: faults[0].hint, faults });
  return body;
};
const send = (path, fields, signal) => get(path, signal, { method: "POST", body: JSON.stringify(fields), headers: { "content-type": "application/json" } });
const asQuery = (fields) => new URLSearchParams(Object.entries(fields).filter(([, v]) => v)).toString();
const here = () => {
  const all = Object.fromEntries(new URLSearchParams(location.search));
  delete all.token;
  const { ask, demo, ...fields } = all;
  return { page: location.pathname.slice(1) || "home", ask, demo, fields };
};

// the model and the device that were asked about last go from page to page
const about = () => JSON.parse(sessionStorage.getItem("about") || "{}");
const remember = ({ model, on }) => sessionStorage.setItem("about", JSON.stringify({ ...about(), ...(model && { model }), ...(on && { on }) }));
const begin = (page, question, given) => {
  if (Object.keys(given).length) return given;
  const known = { ...Object.fromEntries(page.start), ...about() };
  return Object.fromEntries((question.fields || []).filter((f) => known[f.name]).map((f) => [f.name, known[f.name]]));
};

// answers with something to say, the newest first; the home page lists them
const lastAnswers = () => JSON.parse(localStorage.getItem("answers") || "[]");
const keepAnswer = (verdict, path) =>
  localStorage.setItem("answers", JSON.stringify([[verdict, path], ...lastAnswers().filter(([, p]) => p !== path)].slice(0, LAST_ANSWERS)));

function Input({ field, value, set, fault }) {
  const id = `f-${field.name}`;
  const wrong = fault && { "aria-invalid": "true", "aria-describedby": id + "-fault" };
  const change = (e) => set(field.name, field.kind === "flag" ? (e.target.checked ? "yes" : "") : e.target.value);
  if (field.kind === "flag")
    return html`<label class="flag" for=${id}><input id=${id} type="checkbox" checked=${value === "yes"} onChange=${change} /> ${field.label}</label>`;
  const example = field.empty || (field.example && `e.g. ${field.example}`);
  const control =
    field.kind === "choice" || field.kind === "folder"
      ? html`<select id=${id} value=${value} onChange=${change} ...${wrong}>
          <option value="">${field.empty || (field.more ? "as is best" : "choose")}</option>
          ${field.choices.map((c) => html`<option value=${c} selected=${c === value}>${c}</option>`)}
        </select>`
      : ["model", "gpus", "words"].includes(field.kind)
        ? html`<${Combobox} id=${id} kind=${field.kind} value=${value} set=${(v) => set(field.name, v)} placeholder=${example} ...${wrong} />`
        : html`<input id=${id} value=${value} placeholder=${example} autocomplete="off" spellcheck="false" onInput=${change} ...${wrong} />`;
  return html`<div class="field"><label for=${id}>${field.label}</label>${control}
    ${fault && html`<p class="fault" id=${id + "-fault"}>${fault.error}${fault.hint && html`<small>${fault.hint}</small>`}</p>`}</div>`;
}

// three digits and the prefix of their size, as the server writes them
const three = (x) => {
  const digits = x ? Math.max(0, 2 - Math.floor(Math.log10(Math.abs(x)))) : 0;
  const text = x.toFixed(Math.min(digits, 20));
  return digits > 1 ? text.replace(/\.?0+$/, "") : text;
};
const sized = (value, sizes, unit) => {
  const [size, prefix] = sizes.find(([s]) => value >= s) || sizes[sizes.length - 1];
  return `${three(value / size)} ${prefix}${unit}`;
};
const seconds = (s) => sized(s, [[1, ""], [1e-3, "m"], [1e-6, "u"]], "s");
const rate = (r) => sized(r, [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]], "/s");
const whole = (n) => Math.floor(n).toLocaleString("en");

const PLAY_S = 8;
const SPEEDS = [0.25, 0.5, 1, 2, 4];
const STEPS = 200;

// uncovers a drawing up to a share of its time
function unveil(figure) {
  const veil = figure.querySelector(".veil");
  const from = +veil.getAttribute("x");
  const all = +veil.getAttribute("width");
  return (share) => Object.entries({ x: from + all * share, width: all * (1 - share), visibility: "visible" }).forEach(([name, value]) => veil.setAttribute(name, value));
}

// what is played: `end()` is its last moment, `draw(at)` shows one, `words(x)` writes one, `slower(x)` what x of it in a second means
function timeline(figure) {
  const uncover = unveil(figure);
  const end = +figure.dataset.end;
  return { end: () => end, draw: (at) => uncover(at / end), words: (x) => `${whole(x)} cycles`, slower: () => "" };
}

// a straight line through points of time and parts done
function partsAt(ends, t) {
  let [before, done] = [0, 0];
  for (const [at, parts] of ends) {
    if (t < at) return done + ((parts - done) * (t - before)) / (at - before);
    [before, done] = [at, parts];
  }
  return done;
}

function race(figure) {
  const { items, end, copied, axis, sides } = JSON.parse(figure.dataset.race);
  const uncover = unveil(figure);
  let copies = true;
  const runners = sides.map((side, i) => ({
    ...side,
    panel: figure.querySelectorAll(".side")[i],
    bars: [...figure.querySelectorAll(`[data-side="${i}"]`)],
    each: side.cells.flatMap(([count, parts]) => Array(count).fill(parts)),
  }));
  const sum = (all) => all.reduce((a, b) => a + b, 0);
  const lengths = (side) => side.phases.map(([name, s]) => (name === copied && !copies ? 0 : s));
  const total = (side) => sum(lengths(side));
  const lay = () =>
    runners.forEach((side) =>
      lengths(side).forEach((s, n, all) => {
        side.bars[n].setAttribute("x", axis[0] + (sum(all.slice(0, n)) / end) * axis[1]);
        side.bars[n].setAttribute("width", s ? Math.max((s / end) * axis[1], 0.4) : 0);
      }),
    );
  const drawSide = (side, at) => {
    const long = lengths(side);
    const all = sum(long);
    const phase = long.findIndex((_, n) => at < sum(long.slice(0, n + 1)));
    const done = partsAt(side.ends, Math.max(at - sum(long.slice(0, side.work)), 0));
    const share = sum(side.each.map((parts) => Math.min(parts, done))) / sum(side.each);
    const time = Math.min(at, all);
    const high = +side.panel.querySelector(".cells").dataset.cell;
    side.panel.querySelectorAll(".done").forEach((cell, n) => {
      const full = side.each[n] ? Math.min(done / side.each[n], 1) : 0;
      cell.setAttribute("height", high * full);
      cell.setAttribute("y", high * (1 - full));
    });
    const name = phase >= 0 && side.phases[phase][0];
    const shown = {
      phase: phase < 0 ? `done after ${seconds(all)}` : name === copied ? "copying over PCIe" : name,
      items: whole(items * share + 1e-6),
      time: seconds(time),
      rate: share ? rate((items * share) / time) : "0 /s",
      cycles: side.clock && whole(time * side.clock + 0.5),
      instructions: side.instructions && whole(side.instructions * share + 0.5),
    };
    for (const place of side.panel.querySelectorAll("[data-show]")) place.textContent = shown[place.dataset.show];
    side.panel.dataset.phase = phase < 0 ? "done" : phase === side.work ? "work" : "wait";
  };
  const draw = (at) => (uncover(at / end), runners.forEach((side) => drawSide(side, at)));
  const choose = (show) => {
    const label = figure.appendChild(document.createElement("label"));
    label.className = "flag";
    const box = Object.assign(document.createElement("input"), { type: "checkbox", onchange: () => ((copies = !box.checked), lay(), show()) });
    label.append(box, " The data is on the GPU already");
  };
  const copying = sides.some((side) => side.phases.some(([name]) => name === copied));
  return { end: () => Math.max(...runners.map(total)), draw, words: seconds, slower: (x) => `, ${whole(1 / x + 0.5)} times slower`, choose: copying && choose };
}

// played, stepped or scrubbed, at a pace that one can follow; answers with what ends it
function plays(figure) {
  const still = matchMedia("(prefers-reduced-motion:reduce)");
  const { end, draw, words, slower, choose } = figure.dataset.race ? race(figure) : timeline(figure);
  const row = figure.insertBefore(document.createElement("div"), figure.querySelector(":scope > svg, :scope > .race"));
  const made = (name, more) => Object.assign(row.appendChild(document.createElement(name)), more);
  row.className = "play";
  const button = made("button", { type: "button" });
  const next = made("button", { type: "button", textContent: "Step" });
  const slider = made("input", { type: "range", min: 0, max: STEPS });
  slider.setAttribute("aria-label", figure.dataset.play);
  const speed = made("select", { ariaLabel: "Speed" });
  SPEEDS.forEach((s) => speed.append(new Option(`${s} x speed`, s, s === 1, s === 1)));
  const pace = made("output");
  let all = end();
  let at = all;
  let frame = 0;
  let last = 0;
  // how much of its time passes in a second: a round number with which all of it takes eight seconds at most
  const perSecond = () => {
    const least = end() / PLAY_S;
    const power = 10 ** Math.floor(Math.log10(least));
    return speed.value * power * [1, 2, 5, 10].find((m) => m * power >= least * 0.999999);
  };
  const show = () => {
    slider.value = Math.round((at / end()) * STEPS);
    slider.ariaValueText = words(at);
    button.textContent = frame ? "Pause" : "Play";
    pace.textContent = `1 s here is ${words(perSecond()).replace(".0 ", " ")}${slower(perSecond())}`;
    draw(still.matches && frame ? (Math.floor((at / end()) * 10) / 10) * end() : at);
  };
  const stop = () => (cancelAnimationFrame(frame), (frame = 0), show());
  const tick = (now) => {
    at = Math.min(at + (Math.max(now - last, 0) / 1000) * perSecond(), end());
    last = now;
    if (at >= end()) return stop();
    frame = requestAnimationFrame(tick);
    show();
  };
  const play = () => {
    if (at >= end()) at = 0;
    last = performance.now();
    frame = requestAnimationFrame(tick);
    show();
  };
  button.onclick = () => (frame ? stop() : play());
  next.onclick = () => ((at = Math.min(at + end() / STEPS, end())), stop());
  slider.oninput = () => ((at = (slider.value / STEPS) * end()), stop());
  speed.onchange = () => show();
  if (choose) choose(() => ((at = at >= all ? end() : Math.min(at, end())), (all = end()), show()));
  show();
  if (figure.dataset.race && !still.matches) play();
  return stop;
}

// HTML that the server made and escaped; what can be chosen in it asks again
function Answer({ markup, ticked, onSet, onTick }) {
  const ref = useRef();
  useEffect(() => {
    ref.current.innerHTML = markup;
    tipped(ref.current);
    if (ticked) for (const box of ref.current.querySelectorAll("[data-tick]")) box.checked = ticked(Object.fromEntries(new URLSearchParams(box.dataset.tick)));
    const ends = [...ref.current.querySelectorAll("[data-play]")].map(plays);
    return () => ends.forEach((end) => end());
  }, [markup]);
  const act = (e) => {
    const at = e.target.closest("[data-set]");
    if (!at || (e.type === "keydown" && e.key !== "Enter" && e.key !== " ")) return;
    e.preventDefault();
    onSet(Object.fromEntries(new URLSearchParams(at.dataset.set)));
  };
  const tick = (e) => e.target.dataset.tick && onTick(Object.fromEntries(new URLSearchParams(e.target.dataset.tick)), e.target.checked);
  return html`<div class="answer" ref=${ref} onClick=${act} onKeyDown=${act} onChange=${tick}></div>`;
}

function Slider({ name, title, values, value, set }) {
  const at = Math.max(0, values.indexOf(value));
  return html`<div class="slider"><label for=${"s-" + name}>${title}</label>
    <input id=${"s-" + name} type="range" min="0" max=${values.length - 1} value=${at} aria-valuetext=${values[at]}
      onInput=${(e) => set(name, values[e.target.value])} /><output for=${"s-" + name}>${values[at]}</output></div>`;
}

function Copy({ line }) {
  const [done, setDone] = useState("");
  const copy = (what, text) => () => navigator.clipboard.writeText(text).then(() => setDone(what), () => setDone(""));
  return html`<div class="command"><code>${line}</code>
    <button type="button" onClick=${copy("line", line)}>${done === "line" ? "Copied" : "Copy"}</button>
    <button type="button" onClick=${copy("link", location.href)}>${done === "link" ? "Link copied" : "Copy the link"}</button></div>`;
}

// what is wrong: beside its field where there is one, else here
function Refusal({ error }) {
  if (!error) return null;
  const beside = (error.faults || []).filter((f) => f.field);
  const rest = (error.faults || [{ error: error.message, hint: error.hint }]).filter((f) => !f.field);
  return html`<div class="error" role="alert">${rest.map((f) => html`<p>${f.error}</p><p>${f.hint}</p>`)}
    ${beside.length > 0 && html`<p>${beside.length === 1 ? "One field needs another value" : `${beside.length} fields need other values`}:</p>
    <ul class="notes">${beside.map((f) => html`<li><a href=${"#f-" + f.field} onClick=${(e) => (e.preventDefault(), document.getElementById("f-" + f.field).focus())}>${f.label}</a>: ${f.error}</li>`)}</ul>`}</div>`;
}

function Keep({ name, fields, drawn }) {
  return html`<p class="files">Export: ${["html", ...(drawn ? ["svg"] : []), "json", "csv"].map((kind) => html`<a href=${`/export/${name}.${kind}?${asQuery(fields)}`} download=${`${name}.${kind}`}>${kind.toUpperCase()}</a> `)}</p>`;
}

function Ask({ question, start, link }) {
  const [fields, setFields] = useState(start);
  const [answer, setAnswer] = useState(null);
  const [before, setBefore] = useState(null);
  const [front, setFront] = useState("");
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState("");
  const control = useRef(null);
  const shown = useRef(null);
  const part = useRef();
  const towards = useRef(NARROW.matches && question.needs.some((name) => new URLSearchParams(location.search).has(name)));

  // neither a first part nor what a slider shows until its search ends is a last answer
  const show = (body, asked, part) => {
    const last = shown.current;
    if (last && !last.part && last.brief && last.brief !== body.brief) setBefore(last);
    shown.current = { ...body, part, asked: asQuery(asked) };
    setAnswer(shown.current);
    if (body.verdict && !part) keepAnswer(body.verdict, location.pathname + location.search);
    setError(null);
    if (body.front) setFront(body.front);
  };
  const fail = (e) => e.name !== "AbortError" && (setError(e), setBusy(""));
  const search = (asked) => {
    control.current && control.current.abort();
    const mine = (control.current = new AbortController());
    const ask = (fields, part) => get(`/api/ask/${question.name}?${asQuery(fields)}`, mine.signal).then((body) => show(body, asked, part));
    const [first, value] = question.quick || [];
    const quick = first && !asked[first];
    setBusy(quick ? "Looking" : "Searching");
    return (quick ? ask({ ...asked, [first]: value }, true) : Promise.resolve())
      .then(() => (quick && setBusy(question.wait), ask(asked)))
      .then(() => setBusy(""))
      .catch(fail);
  };
  const keep = (next, push) => {
    setFields(next);
    remember(next);
    link(next, push);
  };
  const submit = (e) => {
    e && e.preventDefault();
    setFront("");
    towards.current = true;
    keep(fields, true);
    search(fields);
  };
  // a slider changes what it names and holds the rest of the layout; a point is a whole layout
  const move = (changes, whole) => {
    const { accumulation, ...held } = (question.moment && shown.current?.held) || {};
    const rest = Object.fromEntries(Object.entries(without(fields, Object.keys(changes))).filter(([k]) => !(k in held)));
    const next = { ...rest, ...(whole ? {} : held), ...changes };
    keep(next, whole);
    control.current && control.current.abort();
    const mine = (control.current = new AbortController());
    if (!question.moment) return search(next);
    setBusy("Asking");
    get(`/api/moment?${asQuery(next)}`, mine.signal)
      .then((body) => (show(body, next), setBusy("")))
      .catch(fail);
  };
  const tick = (changes, on) => {
    const next = { ...fields };
    for (const [k, v] of Object.entries(changes)) on ? (next[k] = v) : delete next[k];
    keep(next);
    search(next);
  };
  const clear = (names) => {
    const next = Object.fromEntries(Object.entries(fields).filter(([k]) => !names.includes(k)));
    keep(next);
    search(next);
  };
  useEffect(() => {
    if (question.opens || !question.fields.length || (Object.values(start).some(Boolean) && question.needs.every((n) => start[n]))) search(start);
    return () => control.current && control.current.abort();
  }, []);
  // once an answer has come that was asked for, it is looked at
  useEffect(() => {
    if (!answer || !towards.current) return;
    towards.current = false;
    requestAnimationFrame(() => part.current && (NARROW.matches || part.current.getBoundingClientRect().top > innerHeight / 2) && part.current.scrollIntoView());
  }, [answer]);
  // another choice of a field that leads others leaves them empty
  const without = (was, names) => {
    const led = question.fields.filter((f) => names.includes(f.name)).flatMap((f) => f.leads);
    return Object.fromEntries(Object.entries(was).filter(([name]) => !led.includes(name)));
  };
  const set = (name, value) => {
    setFields((was) => ({ ...without(was, [name]), [name]: value }));
    if (error) setError({ ...error, message: error.message, faults: (error.faults || []).filter((f) => f.field !== name) });
  };
  const asked = question.fields.filter((f) => !question.quick || f.name !== question.quick[0]);
  const first = asked.filter((f) => !f.more);
  const more = asked.filter((f) => f.more);
  const given = more.filter((f) => fields[f.name]);
  const layout = given.filter((f) => question.moment && answer && answer.held && f.name in answer.held);
  const whole = layout.length > LAYOUT_PARTS;
  const held = given.filter((f) => !whole || !layout.includes(f));
  const faults = ((error && error.faults) || []).map((f) => ({ ...f, label: (asked.find((a) => a.name === f.field) || {}).label })).filter((f) => !f.field || f.label);
  const fault = (f) => faults.find((one) => one.field === f.name);
  const stale = answer && !busy && answer.asked !== asQuery(fields);
  const [rest, head] = answer ? answer.html.split("<!--sliders-->").reverse() : [];
  const empty = (f) => f.kind === "folder" && !f.choices.length;
  return html`
    ${asked.some(empty) &&
    html`<p>No run lies in this folder: start <code>gpuwise ui --folder</code> with the one that holds runs of <code>gpuwise run</code>.</p>`}
    ${asked.length > 0 && !asked.some(empty) &&
    html`<form onSubmit=${submit}>
      <div class="fields">${first.map((f) => html`<${Input} field=${f} value=${fields[f.name] || ""} set=${set} fault=${fault(f)} />`)}
        <div class="field"><button class="go">Answer</button></div></div>
      ${more.length > 0 &&
      html`<details open=${more.some(fault) || undefined}><summary>More options${given.length ? ` (${given.length} given)` : ""}</summary>
        <div class="fields">${more.map((f) => html`<${Input} field=${f} value=${fields[f.name] || ""} set=${set} fault=${fault(f)} />`)}</div></details>`}
      ${whole && html`<button type="button" class="held" onClick=${() => clear(layout.map((f) => f.name))}>The layout of the sliders <span aria-label="let go, search for the best">×</span></button>`}
      ${held.map((f) => html`<button type="button" class="held" onClick=${() => clear([f.name])}>${f.label}: ${fields[f.name]} <span aria-label="let go">×</span></button>`)}
    </form>`}
    <p class="status" role="status" aria-live="polite">${busy && html`<span class="spin" aria-hidden="true"></span>${busy}`}</p>
    <${Refusal} error=${error && { ...error, message: error.message, faults: error.faults && faults }} />
    ${answer &&
    html`<div class=${before ? "two" : ""}>
      <section aria-label="Answer" ref=${part} class=${stale || (busy && !answer.part) ? "stale" : ""}>
        ${stale && html`<p class="changed" role="status">The fields have changed: this is the answer to <code>${answer.command}</code> <button type="button" onClick=${submit}>Answer again</button></p>`}
        ${head && html`<${Answer} markup=${head} onSet=${(q) => move(q, true)} onTick=${tick} />`}
        ${answer.choices &&
        html`<div class="sliders" role="group" aria-label="Try another">
          ${answer.choices.map(([name, title, values]) => html`<${Slider} name=${name} title=${title} values=${values}
            value=${fields[name] || answer.held[name]} set=${(n, v) => move({ [n]: v })} />`)}
        </div>`}
        <${Answer} markup=${rest.replace("<!--front-->", answer.front || front)} onSet=${(q) => move(q, true)} onTick=${tick} />
        <${Copy} line=${answer.command} />
        <${Keep} name=${question.name} fields=${Object.fromEntries(new URLSearchParams(answer.asked))} drawn=${answer.html.includes("<figure")} />
      </section>
      ${before && html`<section class="before" aria-label="Last answer"><h2>Last answer</h2><${Answer} markup=${before.brief} onSet=${() => {}} onTick=${() => {}} /></section>`}
    </div>`}`;
}

// changes as --change takes them, apart by spaces
const changesOf = (text) => (text || "").split(" ").filter(Boolean);

function File({ start, link }) {
  const [files, setFiles] = useState(null);
  const [asked, setAsked] = useState({ on: "", ...start });
  const [answer, setAnswer] = useState(null);
  const [beside, setBeside] = useState(null);
  const [error, setError] = useState(null);
  const [said, setSaid] = useState("");
  const control = useRef(null);
  const changes = useRef(changesOf(start.change));
  const given = ({ change, ...fields }, held) => Object.fromEntries(Object.entries({ ...fields, change: held.join(" ") }).filter(([, v]) => v));
  useEffect(() => {
    get("/api/files").then((b) => (setFiles(b), setAsked((was) => ({ ...was, file: was.file || b.files[0] || "" }))), setError);
    const before = (held, keep) =>
      get(`/api/own?${asQuery(given(asked, held))}`).then(
        (body) => (body.html ? keep({ ...body, fields: given(asked, held) }) : setSaid("This code has not been run here yet: a link runs nothing, the button does.")),
        setError,
      );
    if (start.file) before([], setAnswer);
    if (start.file && start.change) before(changes.current, setBeside);
    return () => control.current && control.current.abort();
  }, []);
  const run = (fields, words, keep) => {
    control.current && control.current.abort();
    const mine = (control.current = new AbortController());
    setSaid(words);
    setError(null);
    const told = setInterval(() => get(`/api/own?${asQuery(fields)}`, mine.signal).then((b) => b.told && setSaid(`${words}, ${b.told}`), () => {}), 500);
    send("/api/capture", fields, mine.signal)
      .then((body) => (keep({ ...body, fields }), link(fields, true)))
      .catch((e) => e.name !== "AbortError" && setError(e))
      .finally(() => (clearInterval(told), control.current === mine && (mine.abort(), setSaid(""))));
  };
  const go = (e) => {
    e.preventDefault();
    changes.current = [];
    setBeside(null);
    run(given(asked, []), "Running your code", setAnswer);
  };
  const tick = ({ change }, on) => {
    const named = changesOf(change);
    const rest = changes.current.filter((c) => !named.includes(c));
    changes.current = on ? [...rest, ...named] : rest;
    if (changes.current.length) return run(given(answer.fields, changes.current), "Running your code with what is ticked", setBeside);
    control.current && control.current.abort();
    setSaid("");
    setError(null);
    setBeside(null);
    link(answer.fields, true);
  };
  const ticked = ({ change }) => changesOf(change).every((c) => changes.current.includes(c));
  const set = (name) => (e) => setAsked((was) => ({ ...was, [name]: e.target.type === "checkbox" ? (e.target.checked ? "yes" : "") : e.target.value }));
  const field = (name, label, example) => html`<div class="field"><label for=${"o-" + name}>${label}</label><input id=${"o-" + name} value=${asked[name] || ""} placeholder=${`e.g. ${example}`} autocomplete="off" spellcheck="false" onInput=${set(name)} /></div>`;
  return html`${files &&
    html`<form onSubmit=${go}><p>A file of ${files.folder} is run in it, without a GPU, when you say so: a whole script, or a function that makes a step.</p>
      ${files.files.length === 0 && html`<p class="no">There is no Python file in it: start gpuwise ui --folder with the one that has yours.</p>`}
      <div class="fields">
        <div class="field"><label for="o-file">File</label><select id="o-file" onChange=${set("file")}>${files.files.map((f) => html`<option value=${f} selected=${f === asked.file}>${f}</option>`)}</select></div>
        <div class="field"><label for="o-on">GPUs</label><${Combobox} id="o-on" kind="gpus" value=${asked.on || ""} set=${(on) => setAsked((was) => ({ ...was, on }))} placeholder="e.g. 4090" /></div>
        ${field("arguments", "The script's own arguments", "--lr 0.1")}
        ${field("function", "Function, if not the script", "make_step")} ${field("batch", "Batch, if the function takes one", "32 or auto")}
        <label class="flag" for="o-remedies"><input id="o-remedies" type="checkbox" checked=${asked.remedies === "yes"} onChange=${set("remedies")} /> Try remedies though it fits</label>
      </div><button class="go" disabled=${said.split(",")[0] === "Running your code" || !asked.file}>Run and answer</button></form>`}
    <p class="status" role="status">${said && !said.startsWith("This") && html`<span class="spin" aria-hidden="true"></span>`}${said}</p>
    <${Refusal} error=${error} />
    ${answer && html`<div class=${beside ? "two" : ""}>
      <section aria-label="Answer"><${Answer} markup=${answer.html} ticked=${ticked} onSet=${() => {}} onTick=${tick} /><${Copy} line=${answer.command} /><${Keep} name="own" fields=${answer.fields} drawn=${true} /></section>
      ${beside && html`<section class="before sheet" tabindex="0" aria-label="With what is ticked"><h2>With what is ticked</h2><${Answer} markup=${beside.brief} onSet=${() => {}} onTick=${() => {}} /><${Copy} line=${beside.command} /><${Keep} name="own" fields=${beside.fields} drawn=${true} /></section>`}</div>`}`;
}

// only the page with live lines draws them: its library is fetched there
const uplot = () =>
  (uplot.under_way ||= new Promise((done) => {
    const look = Object.assign(document.createElement("link"), { rel: "stylesheet", href: "/assets/uplot.css" });
    document.head.append(look, Object.assign(document.createElement("script"), { src: "/assets/uplot.js", onload: done }));
  }));

function Live() {
  const ref = useRef();
  const [said, setSaid] = useState("");
  useEffect(() => {
    const source = new EventSource("/api/live" + (new URLSearchParams(location.search).has("demo") ? "?demo=1" : ""));
    let plot, columns;
    uplot();
    const fit = () => plot && plot.setSize({ width: ref.current.clientWidth, height: 240 });
    addEventListener("resize", fit);
    const scheme = matchMedia("(prefers-color-scheme:dark)");
    scheme.onchange = () => plot && (plot.destroy(), (plot = undefined));
    source.addEventListener("refused", (e) => (setSaid(JSON.parse(e.data).error), source.close()));
    source.onmessage = (e) => {
      const { at, names, values, text } = JSON.parse(e.data);
      setSaid(text);
      if (!columns) columns = [[], ...names.map(() => [])];
      [at, ...values].forEach((v, i) => (columns[i].push(v), columns[i].length > 300 && columns[i].shift()));
      const dark = scheme.matches;
      const ink = dark ? "#a9b0bd" : "#5b6270";
      const axis = { stroke: ink, grid: { stroke: dark ? "#3a404c" : "#d5d9e0", width: 1 } };
      const clock = { ...axis, space: 75, incrs: [1, 2, 5, 10, 15, 30, 60], values: (_, ticks) => ticks.map((s) => new Date(1000 * s).toTimeString().slice(0, 8)) };
      const colours = dark ? ["#6cb6ff", "#ff9a57", "#43cfa4", "#f08cc8", "#e6c34a", "#5fd0f5", "#b8a1ff", "#b4bdc9"] : ["#0060a8", "#c14a00", "#007a5a", "#b0478a", "#8a6d00", "#0b7fae", "#6b4fbb", "#5c6670"];
      if (!plot && window.uPlot)
        plot = new uPlot({ width: ref.current.clientWidth, height: 240, legend: { live: false }, axes: [clock, axis], scales: { y: { range: [0, 100] } },
          series: [{}, ...names.map((label, i) => ({ label, stroke: colours[i % 8], width: 2 }))] }, columns, ref.current);
      else if (plot) plot.setData(columns);
    };
    return () => (removeEventListener("resize", fit), (scheme.onchange = null), source.close(), plot && plot.destroy());
  }, []);
  return html`<h2>GPUs now: busy, percent</h2><div class="live" ref=${ref} role="img" aria-label="Utilisation of each GPU over time"></div><div class="status" role="status">${said.split("\n").map((words) => html`<p>${words}</p>`)}</div>`;
}

// a text of the lessons; its words explain themselves on hover, focus or a tap
function Lessons({ lessons, start, follow }) {
  const ref = useRef();
  const [text, setText] = useState("");
  const [error, setError] = useState(null);
  const name = (lessons.find((l) => l.name === start) || lessons[0]).name;
  useEffect(() => {
    fetch(`/assets/${name}.html`).then((r) => (r.ok ? r.text() : Promise.reject(new Error(`the lesson ${name} cannot be read`)))).then(setText, setError);
  }, [name]);
  useEffect(() => {
    ref.current.innerHTML = text;
    for (const table of ref.current.querySelectorAll("table")) {
      const around = Object.assign(document.createElement("div"), { className: "scroll", tabIndex: 0 });
      table.replaceWith(around);
      around.append(table);
    }
  }, [text]);
  const click = (e) => {
    const at = e.target.closest("a[href^='/']");
    if (at) (follow(e, at.getAttribute("href")), scrollTo(0, 0));
  };
  const key = (e) => e.key === "Escape" && document.activeElement.blur();
  const place = (e) => {
    const word = e.target.closest(".word");
    if (word) word.classList.toggle("last", word.getBoundingClientRect().left > innerWidth - 22 * 16);
  };
  return html`<div class="lesson">
    <details open=${matchMedia("(min-width:60rem)").matches}><summary>Lessons</summary>
      <nav aria-label="Lessons"><ul>${lessons.map((l) => html`<li><a href=${"/learn?lesson=" + l.name} aria-current=${l.name === name ? "true" : undefined}
        onClick=${(e) => (follow(e, "/learn?lesson=" + l.name), scrollTo(0, 0))}>${l.title}</a></li>`)}</ul></nav></details>
    <article aria-label="Lesson"><${Refusal} error=${error} /><div ref=${ref} onClick=${click} onKeyDown=${key} onMouseOver=${place} onFocusIn=${place}></div></article></div>`;
}

// a question in words: the page that answers it, or the command where no page does
function Words({ follow }) {
  const [text, setText] = useState("");
  const [found, setFound] = useState(null);
  const ask = async (e) => {
    e.preventDefault();
    try {
      const { offers } = await get("/api/heard?" + asQuery({ q: text }));
      const first = offers.find((o) => o.path);
      if (first && first === offers[0]) follow(e, first.path);
      else setFound({ offers });
    } catch (error) {
      setFound({ error });
    }
  };
  return html`<form class="heard" role="search" onSubmit=${ask}>
      <label for="words">Ask in your words</label>
      <input id="words" value=${text} placeholder="can I run qwen3 32b on two 3090s?" autocomplete="off" onInput=${(e) => setText(e.target.value)} />
      <button>Ask</button></form>
    ${found && found.error && html`<p class="fault" role="alert">${found.error.message}<small>${found.error.hint}</small></p>`}
    ${found && found.offers && html`<ul class="notes" role="status">${found.offers.map((o) => html`<li>${o.question} ${o.path ? html`<a href=${o.path} onClick=${(e) => follow(e, o.path)}>${o.line}</a>` : html`<code>${o.line}</code>`}</li>`)}</ul>`}`;
}

const OWN_TITLES = { own: "Your own code", lessons: "Lessons" };

function Page({ site }) {
  const [at, setAt] = useState(here());
  useEffect(() => {
    const back = () => setAt(here());
    addEventListener("popstate", back);
    return () => removeEventListener("popstate", back);
  }, []);
  const page = site.pages.find((p) => p.name === at.page) || site.pages[0];
  const asks = [...(page.lessons ? ["lessons"] : []), ...page.asks, ...(page.own ? ["own"] : [])];
  const name = asks.includes(at.ask) ? at.ask : asks[0];
  const question = site.questions.find((q) => q.name === name) || { name, title: OWN_TITLES[name] };
  const start = begin(page, question, at.fields);
  const follow = (e, path) => {
    if (e.ctrlKey || e.metaKey || e.shiftKey) return;
    e.preventDefault();
    history.pushState(null, "", path);
    setAt(here());
  };
  const go = (e, name, ask) => follow(e, `/${name}${ask ? `?ask=${ask}` : ""}`);
  const link = (fields, push) => {
    const query = asQuery({ ask: name !== asks[0] ? name : "", demo: at.demo, ...fields });
    history[push ? "pushState" : "replaceState"](null, "", `/${page.name}${query ? "?" + query : ""}`);
  };
  useEffect(() => {
    document.title = `${page.title} - gpuwise`;
  }, [page.name]);
  return html`
    <a class="skip" href="#main">To the answer</a>
    <header><strong>gpuwise</strong><nav aria-label="Pages">${site.pages.map((p) => html`<a href=${"/" + p.name} aria-current=${p === page ? "page" : undefined} onClick=${(e) => go(e, p.name)}>${p.title}</a>`)}</nav></header>
    <main id="main" tabindex="-1"><h1>${page.name === "home" ? page.lead : page.title}</h1>${page.name !== "home" && html`<p class="lead">${page.lead}</p>`}
      ${page.name === "home" && html`<${Words} follow=${follow} />`}
      ${page.examples.length > 0 && html`<p class="examples">Or ask: ${page.examples.map(([words, path]) => html`<a href=${path} onClick=${(e) => follow(e, path)}>${words}</a> `)}</p>`}
      ${asks.length > 1 && html`<nav class="asks" aria-label="Questions">${asks.map((n) => html`<a href=${`/${page.name}?ask=${n}`} aria-current=${n === name ? "true" : undefined} onClick=${(e) => go(e, page.name, n)}>${(site.questions.find((q) => q.name === n) || { title: OWN_TITLES[n] }).title}</a>`)}</nav>`}
      ${page.name === "machine" && question.name === "doctor" && html`<${Live} />`}
      ${name === "lessons" ? html`<${Lessons} lessons=${site.lessons} start=${at.fields.lesson} follow=${follow} />` :
        name === "own" ? html`<${File} key=${JSON.stringify(at.fields)} start=${at.fields} link=${link} />` : html`<${Ask} key=${page.name + question.name + (at.ask || "") + JSON.stringify(at.fields)} question=${question} start=${start} link=${link} />`}
      ${page.name === "home" && lastAnswers().length > 0 && html`<nav class="last" aria-label="Last answers"><h2>Last answers</h2><ul class="notes">${lastAnswers().map(([verdict, path]) => html`<li><a href=${path} onClick=${(e) => follow(e, path)}>${verdict}</a></li>`)}</ul></nav>`}
    </main>`;
}

if (new URLSearchParams(location.search).has("token")) {
  const rest = new URLSearchParams(location.search);
  rest.delete("token");
  history.replaceState(null, "", location.pathname + (rest.toString() ? "?" + rest : ""));
}
const app = document.getElementById("app");
get("/api/pages").then(
  (site) => (app.replaceChildren(), render(html`<${Page} site=${site} />`, app)),
  (e) => (app.textContent = `${e.message}: ${e.hint || ""}`),
);
