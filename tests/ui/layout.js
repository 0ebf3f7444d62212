// Laws of a page: what breaks them, as sentences. Evaluated in the page by tests.
() => {
  const broken = [];
  const name = (e) => `${e.tagName.toLowerCase()}${e.id ? "#" + e.id : ""}${e.classList.length ? "." + [...e.classList].join(".") : ""} "${e.textContent.trim().replace(/\s+/g, " ").slice(0, 50)}"`;
  // on a narrow screen the cells say the names of their columns, and the head is for readers of the screen
  const unseen = (e) => e.closest("thead")?.getBoundingClientRect().width < 2;
  const seen = (e) => e.checkVisibility({ opacityProperty: true, visibilityProperty: true }) && !e.closest(".skip,.tip,[hidden]") && !unseen(e);
  // a sheet over the page, and what moves sideways by itself in a frame of its own
  const apart = (e) => e.closest(".sheet,.wide,.u-wrap");
  const right = document.documentElement.clientWidth;

  if (document.documentElement.scrollWidth > right) broken.push(`the page is ${document.documentElement.scrollWidth} px wide of ${right}`);

  for (const e of document.querySelectorAll("body *")) {
    if (!seen(e) || apart(e) || e.closest("svg") !== null && e.tagName !== "svg") continue;
    const box = e.getBoundingClientRect();
    if (box.width && (box.left < -1 || box.right > right + 1)) broken.push(`outside the screen: ${name(e)}`);
    const style = getComputedStyle(e);
    const clips = style.overflowX !== "visible" && e.tagName !== "svg" && !["INPUT", "SELECT"].includes(e.tagName);
    if (clips && e.scrollWidth > e.clientWidth + 1 && box.width > 2) broken.push(`cut, ${e.scrollWidth} px in ${e.clientWidth}: ${name(e)}`);
    if (e.tagName === "INPUT" && e.value && e.scrollWidth > e.clientWidth + 1) broken.push(`a value does not fit: ${e.id} ${e.value}`);
  }
  for (const table of document.querySelectorAll("table")) {
    const column = table.parentElement.getBoundingClientRect();
    if (seen(table) && !apart(table) && table.getBoundingClientRect().right > column.right + 1) broken.push(`a table is wider than its column: ${name(table)}`);
  }
  for (const text of document.querySelectorAll("figure svg text")) {
    const box = text.getBoundingClientRect();
    const column = text.closest("figure").parentElement.getBoundingClientRect();
    if (seen(text) && !apart(text) && box.width && (box.left < column.left - 20 || box.right > column.right + 20)) broken.push(`a word of a drawing leaves it: ${name(text)}`);
  }

  const words = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walk.nextNode()); ) {
    const of = node.parentElement;
    if (!node.data.trim() || !seen(of) || apart(of) || ["title", "option", "SCRIPT", "STYLE", "NOSCRIPT"].includes(of.tagName)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    // the letters themselves, not the height of their line
    for (const r of range.getClientRects()) {
      const lean = Math.max(0, (r.height - parseFloat(getComputedStyle(of).fontSize)) / 2);
      if (r.width > 1) words.push({ of, left: r.left, right: r.right, top: r.top + lean, bottom: r.bottom - lean });
    }
  }
  words.sort((a, b) => a.top - b.top);
  for (let i = 0; i < words.length; i++)
    for (let j = i + 1; j < words.length && words[j].top < words[i].bottom - 2; j++) {
      const [a, b] = [words[i], words[j]];
      if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2 && Math.min(a.bottom, b.bottom) - b.top > 2) broken.push(`text over text: ${name(a.of)} and ${name(b.of)}`);
    }
  return [...new Set(broken)];
}
