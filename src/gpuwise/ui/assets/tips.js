// The value under the pointer, a finger or the focus: what a drawing has as <title> is shown at once, by touch too.
const tip = Object.assign(document.createElement("div"), { className: "tip", hidden: true });
tip.setAttribute("aria-hidden", "true"); // a reader of the screen has it as the label of the drawing
document.body.append(tip);

export const tipped = (root) =>
  root.querySelectorAll("svg title").forEach((title) => {
    title.parentNode.setAttribute("data-tip", title.textContent);
    title.remove();
  });

const show = (e) => {
  const of = e.target.closest && e.target.closest("[data-tip]");
  if (!of && e.type === "focusin") return; // a tap moves the focus to what is around
  tip.hidden = !of;
  if (!of) return;
  tip.textContent = of.dataset.tip;
  const box = of.getBoundingClientRect();
  const x = e.clientX || box.left + box.width / 2;
  const y = e.clientX ? e.clientY : box.top;
  const room = innerWidth - tip.offsetWidth - 8;
  tip.style.left = `${Math.max(8, Math.min(x - tip.offsetWidth / 2, room))}px`;
  tip.style.top = `${y - tip.offsetHeight - 14 > 0 ? y - tip.offsetHeight - 14 : y + 20}px`;
};
for (const kind of ["pointermove", "pointerdown", "focusin"]) document.addEventListener(kind, show);
document.addEventListener("scroll", () => (tip.hidden = true), { passive: true });
document.addEventListener("keydown", (e) => e.key === "Escape" && (tip.hidden = true));
