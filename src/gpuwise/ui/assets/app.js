// The shell: forms, links, requests. Every number comes from the server as text; none is computed here.
import { html, render, useEffect, useRef, useState } from "/assets/preact-htm.js";

const LAYOUT_WAIT_MS = 300;
const get = async (path, signal, given) => {
  const reply = await fetch(path, { signal, headers: { accept: "application/json" }, ...given });
  const body = await reply.json();
  const said = body.document && body.document.error ? body.document : body;
  if (said.error) throw Object.assign(new Error(said.error), { hint: said.hint, command: body.command });
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

function Input({ field, value, set }) {
  const id = `f-${field.name}`;
  const change = (e) => set(field.name, field.kind === "flag" ? (e.target.checked ? "yes" : "") : e.target.value);
  if (field.kind === "flag")
    return html`<label class="flag" for=${id}><input id=${id} type="checkbox" checked=${value === "yes"} onChange=${change} /> ${field.label}</label>`;
  const control =
    field.kind === "choice" || field.kind === "folder"
      ? html`<select id=${id} value=${value} onChange=${change}>
          <option value="">${field.example || (field.more ? "as is best" : "choose")}</option>
          ${field.choices.map((c) => html`<option value=${c} selected=${c === value}>${c}</option>`)}
        </select>`
      : html`<input id=${id} value=${value} placeholder=${field.example} autocomplete="off" spellcheck="false"
          list=${field.kind === "model" ? "models" : field.kind === "gpus" ? "gpus" : undefined} onInput=${change} />`;
  return html`<div class="field"><label for=${id}>${field.label}</label>${control}</div>`;
}

// draws the veil of a timeline away: played, stepped or scrubbed; answers with what ends it
function plays(figure) {
  const veil = figure.querySelector(".veil");
  const from = +veil.getAttribute("x");
  const all = +veil.getAttribute("width");
  const steps = 200;
  const row = figure.insertBefore(document.createElement("div"), figure.querySelector("svg"));
  const button = row.appendChild(document.createElement("button"));
  const slider = row.appendChild(document.createElement("input"));
  const next = row.appendChild(document.createElement("button"));
  row.className = "play";
  button.type = next.type = "button";
  next.textContent = "Step";
  Object.assign(slider, { type: "range", min: 0, max: steps, value: steps });
  slider.setAttribute("aria-label", figure.dataset.play);
  let timer = 0;
  const show = () => {
    veil.setAttribute("x", from + (all * slider.value) / steps);
    veil.setAttribute("width", all * (1 - slider.value / steps));
    veil.setAttribute("visibility", "visible");
    button.textContent = timer ? "Pause" : "Play";
  };
  const stop = () => (clearInterval(timer), (timer = 0), show());
  const step = () => (slider.stepUp(), +slider.value >= steps ? stop() : show());
  button.onclick = () => {
    if (timer) return stop();
    if (+slider.value >= steps) slider.value = 0;
    timer = setInterval(step, 40);
    show();
  };
  next.onclick = () => (timer && stop(), slider.stepUp(), show());
  slider.oninput = () => (timer ? stop() : show());
  show();
  return stop;
}

// HTML that the server made and escaped; what can be chosen in it asks again
function Answer({ markup, ticked, onSet, onTick }) {
  const ref = useRef();
  useEffect(() => {
    ref.current.innerHTML = markup;
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

function Refusal({ error }) {
  return error && html`<div class="error" role="alert"><p>${error.message}</p><p>${error.hint}</p>${error.command && html`<${Copy} line=${error.command} />`}</div>`;
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
  const timer = useRef(0);
  const shown = useRef(null);

  // neither a first part nor what a slider shows until its search ends is a last answer
  const show = (body, part) => {
    const last = shown.current;
    if (last && !last.part && last.brief && last.brief !== body.brief) setBefore(last);
    shown.current = { ...body, part };
    setAnswer(body);
    setError(null);
    if (body.front) setFront(body.front);
  };
  const fail = (e) => e.name !== "AbortError" && (setError(e), setBusy(""));
  const search = (asked) => {
    control.current && control.current.abort();
    const mine = (control.current = new AbortController());
    const ask = (fields, part) => get(`/api/ask/${question.name}?${asQuery(fields)}`, mine.signal).then((body) => show(body, part));
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
    keep(fields, true);
    search(fields);
  };
  // a slider, a point: this layout at once, and the search with what is held behind it
  const move = (changes, whole) => {
    const next = { ...(Object.keys(changes).some(leads) ? {} : fields), ...changes };
    keep(next, whole);
    clearTimeout(timer.current);
    control.current && control.current.abort();
    const mine = (control.current = new AbortController());
    const { accumulation, ...held } = shown.current?.held || {};
    const asked = whole ? next : { ...next, ...held, ...changes };
    if (!question.moment) return search(next);
    setBusy("Asking");
    get(`/api/moment?${asQuery(asked)}`, mine.signal)
      .then((body) => (show(body, !whole), setBusy("")))
      .catch(fail)
      .finally(() => {
        if (!whole && !mine.signal.aborted) timer.current = setTimeout(() => search(next), LAYOUT_WAIT_MS);
      });
  };
  const tick = (changes, on) => {
    const next = { ...fields };
    for (const [k, v] of Object.entries(changes)) on ? (next[k] = v) : delete next[k];
    keep(next);
    search(next);
  };
  const clear = (name) => {
    const next = { ...fields };
    delete next[name];
    keep(next);
    search(next);
  };
  useEffect(() => {
    if (question.opens || !question.fields.length || (Object.values(start).some(Boolean) && question.needs.every((n) => start[n]))) search(start);
    return () => (clearTimeout(timer.current), control.current && control.current.abort());
  }, []);
  const leads = (name) => question.fields.some((f) => f.leads && f.name === name);
  const set = (name, value) => setFields((was) => ({ ...(leads(name) ? {} : was), [name]: value }));
  const asked = question.fields.filter((f) => !question.quick || f.name !== question.quick[0]);
  const first = asked.filter((f) => !f.more);
  const more = asked.filter((f) => f.more);
  const held = more.filter((f) => fields[f.name]);
  const empty = (f) => f.kind === "folder" && !f.choices.length;
  return html`
    ${asked.some(empty) &&
    html`<p>No run lies in this folder: start <code>gpuwise ui --folder</code> with the one that holds runs of <code>gpuwise run</code>.</p>`}
    ${asked.length > 0 && !asked.some(empty) &&
    html`<form onSubmit=${submit}>
      <div class="fields">${first.map((f) => html`<${Input} field=${f} value=${fields[f.name] || ""} set=${set} />`)}</div>
      ${more.length > 0 &&
      html`<details><summary>More options${held.length ? ` (${held.length} given)` : ""}</summary>
        <div class="fields">${more.map((f) => html`<${Input} field=${f} value=${fields[f.name] || ""} set=${set} />`)}</div></details>`}
      <button class="go">Answer</button>
      ${held.map((f) => html`<button type="button" class="held" onClick=${() => clear(f.name)}>${f.label}: ${fields[f.name]} <span aria-label="let go">×</span></button>`)}
    </form>`}
    <p class="status" role="status" aria-live="polite">${busy && html`<span class="spin" aria-hidden="true"></span>${busy}`}</p>
    <${Refusal} error=${error} />
    ${answer &&
    html`<div class=${before ? "two" : ""}>
      <section aria-label="Answer">
        ${answer.choices &&
        html`<div class="sliders" role="group" aria-label="Try another">
          ${answer.choices.map(([name, title, values]) => html`<${Slider} name=${name} title=${title} values=${values}
            value=${fields[name] || answer.held[name]} set=${(n, v) => move({ [n]: v })} />`)}
        </div>`}
        <${Answer} markup=${answer.html.replace("<!--front-->", answer.front || front)} onSet=${(q) => move(q, true)} onTick=${tick} />
        <${Copy} line=${answer.command} />
        <${Keep} name=${question.name} fields=${fields} drawn=${answer.html.includes("<figure")} />
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
  const field = (name, label, example, more) => html`<div class="field"><label for=${"o-" + name}>${label}</label><input id=${"o-" + name} value=${asked[name] || ""} placeholder=${example} autocomplete="off" spellcheck="false" onInput=${set(name)} ...${more} /></div>`;
  return html`${files &&
    html`<form onSubmit=${go}><p>A file of ${files.folder} is run in it, without a GPU, when you say so: a whole script, or a function that makes a step.</p>
      ${files.files.length === 0 && html`<p class="no">There is no Python file in it: start gpuwise ui --folder with the one that has yours.</p>`}
      <div class="fields">
        <div class="field"><label for="o-file">File</label><select id="o-file" onChange=${set("file")}>${files.files.map((f) => html`<option value=${f} selected=${f === asked.file}>${f}</option>`)}</select></div>
        ${field("on", "GPUs", "4090", { list: "gpus" })} ${field("arguments", "The script's own arguments", "--lr 0.1")}
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

function Page({ site }) {
  const [at, setAt] = useState(here());
  useEffect(() => {
    const back = () => setAt(here());
    addEventListener("popstate", back);
    return () => removeEventListener("popstate", back);
  }, []);
  const page = site.pages.find((p) => p.name === at.page) || site.pages[0];
  const asks = page.own ? [...page.asks, "own"] : page.asks;
  const name = asks.includes(at.ask) ? at.ask : asks[0];
  const question = site.questions.find((q) => q.name === name) || { name, title: "Your own code" };
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
    <main id="main" tabindex="-1"><h1>${page.title}</h1><p class="lead">${page.lead}</p>
      ${page.examples.length > 0 && html`<p class="examples">Or: ${page.examples.map(([words, path]) => html`<a href=${path} onClick=${(e) => follow(e, path)}>${words}</a> `)}</p>`}
      ${asks.length > 1 && html`<nav class="asks" aria-label="Questions">${asks.map((n) => html`<a href=${`/${page.name}?ask=${n}`} aria-current=${n === name ? "true" : undefined} onClick=${(e) => go(e, page.name, n)}>${(site.questions.find((q) => q.name === n) || { title: "Your own code" }).title}</a>`)}</nav>`}
      ${page.name === "machine" && question.name === "doctor" && html`<${Live} />`}
      ${name === "own" ? html`<${File} key=${JSON.stringify(at.fields)} start=${at.fields} link=${link} />` : html`<${Ask} key=${page.name + question.name + (at.ask || "") + JSON.stringify(at.fields)} question=${question} start=${start} link=${link} />`}
    </main>
    <datalist id="models">${site.models.map((m) => html`<option value=${m} />`)}</datalist>
    <datalist id="gpus">${site.gpus.map((g) => html`<option value=${g} />`)}</datalist>`;
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
