// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace vitrine::tools::html {

/// The style of pages but for the colours of paints.
inline constexpr const char* kPageStyle = R"css(
:root{color-scheme:light dark;--page:#ffffff;--card:#f6f7f8;--ink:#16191d;--soft:#59626d;--grid:#dfe3e7;--line:#b9c0c8;--mark:#b3261e}
@media (prefers-color-scheme:dark){:root{--page:#15181c;--card:#1d2126;--ink:#e8eaed;--soft:#a3abb5;--grid:#2c3239;--line:#4a525c;--mark:#ff8a80}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main,header{max-width:1120px;margin:0 auto;padding:0 16px}
h1{font-size:1.5rem;line-height:1.25;margin:28px 0 4px}
h2{font-size:1.15rem;margin:40px 0 8px;padding-top:14px;border-top:1px solid var(--grid)}
h3{font-size:1rem;margin:26px 0 6px}
p{margin:6px 0;max-width:75ch}
nav{display:flex;flex-wrap:wrap;gap:4px 16px;margin:12px 0 0;font-size:.87rem}
nav a{color:var(--soft)}
.soft,summary,.axis,figcaption{color:var(--soft)}
.soft,figcaption{font-size:.87rem}
code,.command{font-family:ui-monospace,SFMono-Regular,Menlo,"DejaVu Sans Mono",monospace;font-size:.85rem}
.command{display:block;background:var(--card);border-radius:6px;padding:8px 12px;overflow-wrap:anywhere;margin:8px 0}
code{background:var(--card);border-radius:4px;padding:1px 5px;overflow-wrap:anywhere}
.findings{list-style:none;margin:8px 0;padding:0;display:grid;gap:8px}
.findings li{background:var(--card);border-left:3px solid var(--mark);border-radius:0 6px 6px 0;padding:8px 12px}
.findings li.good{border-left-color:#4fa35f}
.scroll{overflow-x:auto;margin:8px 0}
table{border-collapse:collapse;font-size:.87rem;font-variant-numeric:tabular-nums;min-width:40%}
th,td{padding:3px 14px 3px 0;text-align:right;white-space:nowrap;font-weight:400}
th:first-child{text-align:left;padding-right:18px}
thead th{color:var(--soft);border-bottom:1px solid var(--line);vertical-align:bottom}
tbody tr+tr>*{border-top:1px solid var(--grid)}
tr.sum>*{font-weight:600}
.text td{text-align:left;white-space:normal;min-width:9ch}
figure{margin:12px 0 20px}
details{margin:8px 0}summary{cursor:pointer;font-size:.87rem}
.legend{display:flex;flex-wrap:wrap;gap:2px 16px;list-style:none;margin:4px 0 8px;padding:0;font-size:.82rem}
.legend li{display:flex;align-items:center;gap:6px}
.swatch{width:12px;height:12px;border-radius:3px;display:inline-block}
svg.chart{display:block;overflow:visible;font-size:12px}
svg text{fill:var(--ink)}
svg .axis{fill:var(--soft);font-size:11px}
svg .name{font-size:12px}
svg .strong{font-weight:600}
svg .halo{paint-order:stroke;stroke:var(--page);stroke-width:3px;stroke-linejoin:round}
svg .on{fill:#101316;font-size:11px;pointer-events:none}
svg .over{font-size:11px;pointer-events:none;paint-order:stroke;stroke:var(--page);stroke-width:3px;stroke-linejoin:round}
svg .axis.halo{fill:var(--ink)}
svg .grid{stroke:var(--grid)}
svg .border{stroke:var(--line);stroke-dasharray:2 3}
svg .capacity{stroke:var(--mark);stroke-width:2}
svg .beneath{stroke:var(--page);stroke-width:5}
svg .plan{stroke:var(--ink);stroke-dasharray:6 4}
svg .peak{fill:var(--page);stroke:var(--ink);stroke-width:2}
svg .track{fill:var(--card);background:none}
svg .part,svg .band{stroke:var(--page);stroke-width:1}
svg .block{stroke:var(--page);stroke-width:.6;vector-effect:non-scaling-stroke}
svg .curve{fill:none!important;stroke-width:1.8;vector-effect:non-scaling-stroke;stroke-linejoin:round}
svg .lit{stroke:var(--ink)!important;stroke-width:1.6}
svg .curve.lit{stroke-width:3}
.hatched{fill:url(#hatch);background:repeating-linear-gradient(45deg,#929292 0 2px,transparent 2px 5px)}
.hatched-violet{fill:url(#hatch-violet);background:repeating-linear-gradient(45deg,#9b82d6 0 2px,transparent 2px 5px)}
.hatched-red{fill:url(#hatch-red);background:repeating-linear-gradient(45deg,#e0605a 0 2px,transparent 2px 5px)}
#tip{position:fixed;z-index:9;max-width:min(340px,90vw);padding:6px 9px;border-radius:6px;background:var(--ink);color:var(--page);font-size:.82rem;line-height:1.35;pointer-events:none;overflow-wrap:anywhere}
#patterns{position:absolute;width:0;height:0}
@media (min-width:900px){.pair{display:grid;grid-template-columns:1fr 1fr;gap:0 32px}}
@media print{:root{--page:#fff;--card:#f3f4f5;--ink:#111;--soft:#444;--grid:#ddd;--line:#aaa;--mark:#b3261e}
body{font-size:11px;-webkit-print-color-adjust:exact;print-color-adjust:exact}nav,#tip{display:none}
main,header{max-width:none;padding:0}figure,tr,li,h2,h3{break-inside:avoid}h2,h3{break-after:avoid}.scroll{overflow:visible}
th,td{padding-right:8px;white-space:normal}}
)css";

/// Patterns that shapes of the classes "hatched..." are filled with.
inline constexpr const char* kPatterns = R"svg(<svg id="patterns" aria-hidden="true"><defs>
<pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="2.4" height="6" fill="#929292"/></pattern>
<pattern id="hatch-violet" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="3" height="6" fill="#9b82d6"/></pattern>
<pattern id="hatch-red" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="3" height="6" fill="#e0605a"/></pattern>
</defs></svg>
)svg";

/// Shows what the shape under the pointer says, in place of the browser's own slow tip.
inline constexpr const char* kPageScript = R"js(
(() => {
  const tip = document.createElement('div');
  tip.id = 'tip';
  tip.hidden = true;
  document.body.append(tip);
  let lit = null;
  const say = (shape) => {
    const title = shape.querySelector(':scope > title');
    if (title) { shape.dataset.says = title.textContent; title.remove(); }
    return shape.dataset.says;
  };
  const leave = () => {
    if (lit) lit.classList.remove('lit');
    lit = null;
    tip.hidden = true;
  };
  const point = (event) => {
    const shape = event.target instanceof SVGGraphicsElement ? event.target : null;
    const text = shape && shape.tagName !== 'svg' ? say(shape) : undefined;
    if (!text) return leave();
    if (shape !== lit) {
      leave();
      lit = shape;
      shape.classList.add('lit');
      tip.textContent = text;
      tip.hidden = false;
    }
    const box = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(event.clientX + 12, innerWidth - box.width - 4)) + 'px';
    tip.style.top = (event.clientY + 16 + box.height > innerHeight ? event.clientY - box.height - 10 : event.clientY + 16) + 'px';
  };
  addEventListener('pointermove', point);
  addEventListener('pointerdown', point);
  addEventListener('scroll', leave, {passive: true});
})();
)js";

}  // namespace vitrine::tools::html
