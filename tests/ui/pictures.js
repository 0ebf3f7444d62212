// What a person gets of a page, whatever the letters of the machine: where its blocks stand, in shares of the width.
() => {
  const kinds = ["header", "h1", "form", ".field", "section[aria-label=Answer]", "section[aria-label=Answer]>.answer>h2", ".tiles>div", ".sliders", ".figures>figure", ".scroll", ".answer>details", ".command", ".files"];
  const blocks = kinds.flatMap((kind) => [...document.querySelectorAll(kind)].filter((e) => e.checkVisibility() && !e.closest("details:not([open])>:not(summary)")).map((e) => [kind, e.getBoundingClientRect()]));
  blocks.sort(([, a], [, b]) => Math.round(a.top) - Math.round(b.top) || a.left - b.left);
  return blocks.map(([kind, box]) => [kind, +(box.left / innerWidth).toFixed(3), +(box.width / innerWidth).toFixed(3)]);
}
