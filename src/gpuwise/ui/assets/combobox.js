// A field with names to choose from (WAI-ARIA combobox): type to search, arrows and Enter to choose; other text is left as typed.
import { html, useEffect, useRef, useState } from "/assets/preact-htm.js";

const SHOWN = 50;
let asked;
// [name, what it is] by kind of field, the most common first; fetched when a field is first used
const names = () => (asked ||= fetch("/api/names").then((reply) => reply.json()));

// what of the text is a name: not a count in front of it, nor the names before it
const BEFORE = { gpus: /^\s*\d+\s*x\s*/i, words: /^.*,\s*/s, model: /^(?!)/ };
const split = (kind, text) => {
  const before = (BEFORE[kind].exec(text) || [""])[0];
  return [before, text.slice(before.length)];
};
const plain = (text) => text.toLowerCase().replace(/[\s_-]+/g, "");
const found = (all, text) => {
  const words = text.split(/\s+/).map(plain).filter(Boolean);
  return words.length ? all.filter(([name, what]) => words.every((w) => plain(name).includes(w) || plain(what).includes(w))) : all;
};

export function Combobox({ id, kind, value, set, ...more }) {
  const [all, setAll] = useState([]);
  const [open, setOpen] = useState(false);
  const [at, setAt] = useState(-1);
  const [typed, setTyped] = useState(false);
  const list = useRef();
  const [before, name] = split(kind, value);
  const fits = open ? found(all, typed ? name : "") : [];
  const rows = fits.slice(0, SHOWN);
  const show = () => {
    names().then((known) => setAll(known[kind === "model" ? "models" : "gpus"]), () => {});
    setOpen(true);
  };
  const hide = () => (setOpen(false), setTyped(false), setAt(-1));
  const choose = (row) => (set(before + row[0]), hide());
  const move = (by) => (open ? setAt((at + by + rows.length) % rows.length || 0) : show());
  const keys = {
    ArrowDown: () => move(1),
    ArrowUp: () => move(-1),
    Enter: () => open && rows[at] && choose(rows[at]),
    Escape: () => open && (hide(), true),
  };
  const press = (e) => keys[e.key] && keys[e.key]() !== false && (e.key !== "Enter" || open && rows[at]) && e.preventDefault();
  useEffect(() => {
    const row = list.current && list.current.querySelector("[aria-selected=true]");
    row && row.scrollIntoView({ block: "nearest" });
  }, [at, rows.length]);
  return html`<div class="combobox"><input id=${id} role="combobox" aria-autocomplete="list" aria-expanded=${open && rows.length > 0} aria-controls=${id + "-names"}
      aria-activedescendant=${rows[at] ? `${id}-${at}` : undefined} value=${value} autocomplete="off" autocapitalize="off" spellcheck="false" ...${more}
      onInput=${(e) => (set(e.target.value), setTyped(true), setAt(-1), show())} onKeyDown=${press} onClick=${() => open || show()} onBlur=${hide} />
    <ul id=${id + "-names"} role="listbox" aria-label="Names" hidden=${!rows.length} ref=${list} onMouseDown=${(e) => e.preventDefault()}>
      ${rows.map((row, i) => html`<li id=${`${id}-${i}`} role="option" aria-selected=${i === at} onClick=${() => choose(row)}><b>${row[0]}</b> <small>${row[1]}</small></li>`)}
      ${fits.length > SHOWN && html`<li class="rest" role="presentation">${fits.length - SHOWN} more: type to search</li>`}
    </ul></div>`;
}
