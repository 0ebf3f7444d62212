"""The look of every answer, in a page, a file of its own or a notebook."""

from __future__ import annotations

from gpuwise.report.answers.drawings import style as drawings_style
from gpuwise.report.page import style as page_style

_CSS = """
.tiles{display:flex;flex-wrap:wrap;gap:.8rem;margin:1rem 0}
.tiles div{flex:1 1 8.5rem;max-width:24rem;background:var(--card);padding:.7rem .9rem;border-radius:.5rem}
.tiles dt{font-size:.85rem;color:var(--muted)}
.tiles dd{margin:0;font-size:1.3rem;font-weight:600;font-variant-numeric:tabular-nums}
.yes{color:var(--good);font-weight:700}.no,.maybe{color:var(--weak);font-weight:700}
.layout{color:var(--muted)}
figure svg.bar{height:2.8rem;max-width:none}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;padding:0;margin:.5rem 0;font-size:.88rem}
figure svg.mark,svg.mark{display:inline-block;width:.75em;height:.75em;margin:0}
.hit{stroke:none}g[data-set]{cursor:pointer}
figure{container-type:inline-size}
@container (max-width:29rem){svg text{font-size:15px}figure svg{overflow:visible}}
@media screen and (max-width:32rem){svg text{font-size:18px}#chart text{font-size:15px}.wide{overflow-x:auto}
figure svg.bar{width:100%;margin:0}
figure svg:not(.bar):not(.mark){width:calc(100% - 1.5rem);margin:0 0 0 1.5rem;overflow:visible}
figure .wide svg:not(.bar):not(.mark){width:30rem;max-width:none;margin:0}}
.race{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,20rem),1fr));gap:1rem 2rem;margin:.6rem 0}
.side{background:var(--card);padding:.8rem 1rem;display:flex;flex-direction:column}.side h3{margin:0;font-size:1.05rem}
.side p{margin:.2rem 0 .5rem;font-size:.88rem;color:var(--muted)}.side .cells{margin-top:auto;max-height:13rem}
.side .phase{font-weight:700;color:var(--ink);font-size:1rem;margin:.5rem 0 .2rem}.side[data-phase=done] .phase{color:var(--good)}
.lane{stroke:var(--card);stroke-width:.5;fill:none}
.counters{margin:0;font-variant-numeric:tabular-nums}.counters div{display:flex;justify-content:space-between;gap:1rem}
.counters dt{color:var(--muted)}.counters dd{margin:0;font-weight:600}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--card);padding:.8rem;border-radius:.5rem}
"""


def style() -> str:
    """CSS of answers, their figures and the page around them."""
    return page_style() + drawings_style() + _CSS
