// SPDX-License-Identifier: Apache-2.0
// The charts of a report, in the page that the program writes, in the planner's page and wherever else a record is shown:
//   vitrine.draw(element, {kind, record, charts, refused})
// fills every [data-chart] in the element. `record` is what --json prints, `charts` what it leaves out of each run (charts_json.h).
'use strict';
const vitrine = (() => {

// A color has one meaning: a category of memory, a kind of phase (those with one purpose share it), a kind of communication, or the first, second, ...
// series of a chart of results. Update is the phase called optimizer; the category of that name is memory.
const PAINTS = {
  parameters: 'blue', gradients: 'orange', optimizer: 'green', activations: 'rose', workspace: 'teal', staging: 'gold', dataset: 'orchid',
  communication: 'violet', fragmentation: 'grey', outside: 'slate',
  data: 'olive', stage: 'olive', scatter: 'olive', preprocess: 'olive', forward: 'wine', gather: 'pine', loss: 'pine', scatter_grad: 'pine',
  backward: 'rust', recompute: 'mauve', reduce: 'purple', replicate: 'purple', broadcast: 'purple', decide: 'forest', cast: 'forest', update: 'forest',
  evaluate: 'navy', checkpoint: 'navy', setup: 'navy', graph: 'navy', step: 'navy', wait: 'hatched',
  hidden: 'lime', exposed: 'red', 'late peers, hidden': 'hatched-lime', 'late peers, exposed': 'hatched-red',
  series1: 'indigo', series2: 'pink', series3: 'sage', series4: 'dust',
};
const phasePaint = (phase) => phase === 'optimizer' ? 'update' : phase;
const isPattern = (key) => /^hatched/.test(PAINTS[key]);
const isPale = (key) => isPattern(key) || key === 'fragmentation';
const paint = (key) => isPattern(key) ? PAINTS[key] : key === 'fragmentation' ? 'empty ' + PAINTS[key] : 'paint ' + PAINTS[key];

// ---- Numbers as the program writes them.

/** toFixed() that rounds a half to even. */
function fixed(value, digits) {
  const scaled = value * 10 ** digits, floor = Math.floor(scaled);
  return (scaled - floor === 0.5 ? (floor + floor % 2) / 10 ** digits : value).toFixed(digits);
}
const counted = (value) => Math.round(value).toLocaleString('en-US');
const percent = (share) => `${fixed(100 * share, share !== 0 && Math.abs(share) < 0.1 ? 1 : 0)} %`;
function bytesText(bytes) {
  if (Math.abs(bytes) < 1024) return `${bytes} B`;
  let value = bytes / 1024, unit = 0;
  for (; Math.abs(value) >= 1023.95 && unit < 3; ++unit) value /= 1024;
  return `${fixed(value, 1).replace(/\.0$/, '')} ${['KiB', 'MiB', 'GiB', 'TiB'][unit]}`;
}
function secondsText(seconds) {
  if (seconds === 0) return '0';
  const [value, unit] = seconds >= 1 ? [seconds, 's'] : seconds >= 1e-3 ? [seconds * 1e3, 'ms'] : [seconds * 1e6, 'us'];
  return `${+fixed(value, value >= 100 ? 0 : value >= 10 ? 1 : 2)} ${unit}`;
}
/** "65,536", "123", "12.3", "1.23", "0.0021". */
function numberText(value) {
  const size = Math.abs(value);
  if (size >= 999.5) return counted(value);
  return size === 0 || size >= 0.095 ? fixed(value, size >= 99.5 ? 0 : size >= 9.95 ? 1 : 2) : `${+value.toPrecision(2)}`;
}
/** Multiples of a round step from 0 up to `largest`, about `count`. */
function ticks(largest, count = 4) {
  if (!(largest > 0)) return [0, 1];
  const power = 10 ** Math.floor(Math.log10(largest / count)), factor = largest / count / power;
  const step = power * (factor <= 1 ? 1 : factor <= 2 ? 2 : factor <= 5 ? 5 : 10);
  return Array.from({length: Math.floor(largest / step * 1.001) + 1}, (_, i) => i * step);
}
function byteTicks(largest) {
  let step = 256;
  while (step * 4 < largest) step *= 2;
  return Array.from({length: Math.floor(largest / step) + 1}, (_, i) => i * step);
}
const sum = (values) => values.reduce((a, b) => a + b, 0);

// ---- Elements. Text is always set as text, never parsed as HTML.

function make(namespace, name, attributes, children) {
  const node = document.createElementNS(namespace, name);
  for (const [key, value] of Object.entries(attributes)) if (value !== undefined) node.setAttribute(key, value);
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}
// A page without requests has no addresses, not even those of the namespaces.
const [HTML, SVG] = ['<p></p>', '<svg></svg>'].map((markup) => Object.assign(document.createElement('div'), {innerHTML: markup}).firstChild.namespaceURI);
const html = (name, attributes, ...children) => make(HTML, name, attributes, children);
const svg = (name, attributes, ...children) => make(SVG, name, attributes, children);

// ---- Shapes. x is in percent of the page's width, y in pixels, so that text keeps its size on every screen.

const across = (x) => +x.toFixed(3) + '%';
const tip = (title) => title ? svg('title', {}, title) : null;
/** `value` is what a test reads: the number that the shape shows. */
const rect = (x, y, width, height, style, title, value) =>
  svg('rect', {x: across(x), y, width: across(width), height, class: style, 'data-value': value}, tip(title));
/** What a line of the grid means, to the left of the chart. */
const tick = (y, words) => svg('text', {x: -7, y: y + 4, 'text-anchor': 'end', class: 'axis tick'}, words);
const line = (x1, y1, x2, y2, style) => svg('line', {x1: across(x1), y1, x2: across(x2), y2, class: style});
const dot = (x, y, style, title, value) => svg('circle', {cx: across(x), cy: y, r: 4, class: style, 'data-value': value}, tip(title));
const text = (x, y, anchor, style, words) => svg('text', {x: across(x), y, 'text-anchor': anchor, class: style}, words);
/** Words that are shown if they fit into the width; see fit(). Words on a pattern have a plate behind them. */
const clipped = (x, y, width, words, key) =>
  svg('svg', {x: across(x), y, width: across(width), height: 18, class: 'clipped'},
      isPattern(key) ? svg('rect', {y: 1, width: 0, height: 16, class: 'plate'}) : null,
      svg('text', {x: 4, y: 13, 'data-words': words, class: isPale(key) ? 'over' : 'on ' + PAINTS[key]}, words));
/** Words of which as many are shown as fit. */
const shortened = (x, y, width, style, words) =>
  svg('svg', {x, y, width, height: 18, class: 'clipped'}, svg('text', {x: 0, y: 13, 'data-words': words, class: 'name ' + style}, words));
/** An area or a curve through points [x, y]. */
const path = (points, height, style, closed, title) =>
  svg('svg', {width: '100%', height, viewBox: `0 0 1000 ${height}`, preserveAspectRatio: 'none'},
      svg('path', {d: 'M' + points.map(([x, y]) => `${+(10 * x).toFixed(2)} ${+y.toFixed(2)}`).join('L') + (closed ? 'Z' : ''), class: style}, tip(title)));
const chart = (height, label, ...shapes) => svg('svg', {class: 'chart', role: 'img', 'aria-label': label, width: '100%', height}, ...shapes);
const titled = (label, ...nodes) => [html('h3', {}, label), ...nodes];

/** What the colors mean, under one name. entries: [name, paint, kind of dashes]; names of one style share an entry. */
function legend(title, entries) {
  const names = new Map();
  for (const [name, key, dashes] of entries) {
    const style = paint(key) + (dashes ? ' dashes' + dashes : '');
    names.set(style, (names.get(style) ?? new Set()).add(name));
  }
  if (!names.size) return null;
  return html('ul', {class: 'legend'}, title ? html('li', {class: 'soft'}, title) : null,
              [...names].map(([style, all]) => html('li', {}, html('span', {class: 'swatch ' + style}), [...all].join(', '))));
}

// ---- Kinds of charts.

/**
 * Groups of stacked bars on one scale.
 *   groups  [{title, bars: [{label, total, capacity, whisker: [from, to], parts: [{name, key, value, text}]}]}]
 * A capacity that would make the bars shorter than a quarter of the chart has no line.
 */
function drawBars(label, groups, legendTitle) {
  const rowHeight = 48, above = 19, height = 22, all = groups.flatMap((group) => group.bars);
  for (const bar of all) bar.parts = bar.parts.filter((part) => part.value > 0);
  const parts = all.flatMap((bar) => bar.parts), named = parts.some((part) => part.key !== parts[0].key);
  if (!parts.length) return null;
  const longest = Math.max(...all.map((bar) => Math.max(sum(bar.parts.map((part) => part.value)), bar.whisker?.[1] ?? 0)));
  const capacity = Math.max(...all.map((bar) => bar.capacity || 0)), largest = capacity <= 4 * longest ? Math.max(longest, capacity) : longest;
  const x = (value) => 100 * value / largest;
  const draw = (bar, i) => {
    const top = rowHeight * i + above, middle = top + height / 2;
    let left = 0;
    const shapes = bar.parts.map((part) => {
      const begin = left, width = x(part.value);
      left += width;
      return [rect(begin, top, width, height, 'part ' + paint(part.key), `${bar.label}: ${part.name} ${part.text}`, part.value),
              width >= 9 && bar.parts.length > 1 ? clipped(begin, top + 2, width, part.name, part.key) : null];
    });
    return svg('g', {class: 'bar', 'data-label': bar.label},
               svg('text', {x: 0, y: top - 5, class: 'name', 'data-words': bar.label}, bar.label), text(100, top - 5, 'end', 'name', bar.total), shapes,
               bar.whisker ? [line(x(bar.whisker[0]), middle, x(bar.whisker[1]), middle, 'whisker'),
                              bar.whisker.map((end) => line(x(end), middle - 6, x(end), middle + 6, 'whisker'))] : null,
               bar.capacity && bar.capacity <= largest
                 ? ['beneath', 'capacity'].map((style) => line(x(bar.capacity), top - 2, x(bar.capacity), top + height + 2, style)) : null);
  };
  return [
    named ? legend(legendTitle, parts.map((part) => [part.key === 'wait' ? 'wait' : part.name, part.key])) : null,
    groups.filter((group) => group.bars.length).map((group) => [
      group.title ? html('h3', {}, group.title) : null,
      html('figure', {}, chart(rowHeight * group.bars.length, group.title ? `${label} under ${group.title}` : label, group.bars.map(draw))),
    ]),
  ];
}

const MOST_POINTS = 600;
/** The smallest and the largest value of each stretch of a long curve, and its ends. */
function thinned(points) {
  if (points.length <= MOST_POINTS) return points;
  const few = [points[0]], stretches = MOST_POINTS / 2;
  for (let s = 0; s < stretches; ++s) {
    const part = points.slice(Math.floor(s * points.length / stretches), Math.floor((s + 1) * points.length / stretches)).filter(([, y]) => y !== null);
    const by = (better) => part.reduce((a, b) => better(b[1], a[1]) ? b : a, part[0]);
    few.push(...new Set([by((a, b) => a < b), by((a, b) => a > b)].filter(Boolean).sort((a, b) => a[0] - b[0])));
  }
  return [...few, points.at(-1)];
}

/**
 * Curves over the steps, or over one.
 *   curves       [{name, key, points: [[x, y, title]], dots, steps, dashes}]; steps: a value holds until the next one; y null: a gap
 *   logarithmic  an axis in powers of two; otherwise it begins at 0      bytes  values are bytes, and the largest stands beside a curve's name, not the last
 *   bands        [{name, key, begin, end}] of one step, which then is the axis      ends  the words at the ends of the axis
 */
function drawCurves(label, curves, {logarithmic, bytes, bands = [], ends} = {}) {
  const scale = (y) => y === null || !Number.isFinite(logarithmic ? Math.log2(y) : y) ? null : logarithmic ? Math.log2(y) : y;
  curves = curves.filter((curve) => curve.points.length)
               .map((curve) => ({...curve, points: thinned(curve.points).map(([x, y, title]) => [x, scale(y), title, y])}));
  const points = curves.flatMap((curve) => curve.points).filter(([, y]) => y !== null);
  if (!points.length) return null;
  // One point is a number, not a chart.
  if (points.every(([x]) => x === points[0][0])) {
    return html('p', {}, `After step ${points[0][0]}: `, curves.filter((curve) => curve.points.some(([, y]) => y !== null)).map(
      (curve, i) => `${i ? ', ' : ''}${curve.name} ${numberText(curve.points.find(([, y]) => y !== null)[3])}`), '.');
  }
  const band = 20, top = bands.length ? 34 : 12, plot = 180, height = top + plot + 22;
  const [left, right] = [Math.min(...points.map(([x]) => x)), Math.max(...points.map(([x]) => x))];
  const low = logarithmic ? Math.min(...points.map(([, y]) => y)) : Math.min(0, ...points.map(([, y]) => y));
  const high = Math.max(...points.map(([, y]) => y), low === Math.max(...points.map(([, y]) => y)) ? low + 1 : -Infinity);
  const x = (value) => 1 + 98 * (value - left) / (right - left), y = (value) => top + plot * (1 - (value - low) / ((high - low) * 1.05));
  const lines = bytes ? byteTicks(high).map((value) => [value, bytesText(value)])
    : ticks(high - low, logarithmic ? Math.max(1, Math.min(4, Math.floor(high - low))) : 4).map((value) => low + value)
        .map((value) => [value, logarithmic ? numberText(2 ** value) : `${+value.toPrecision(3)}`]);
  const draw = (curve) => {
    const pieces = [[]];
    for (const [at, value] of curve.points) {
      const piece = pieces.at(-1);
      if (value === null) {
        pieces.push([]);
      } else {
        if (curve.steps && piece.length) piece.push([x(at), piece.at(-1)[1]]);
        piece.push([x(at), y(value)]);
      }
    }
    const dots = curve.dots || curve.points.length === 1 ? curve.points.filter(([, value]) => value !== null) : [];
    const style = `curve ${paint(curve.key)}${curve.dashes ? ' dashes' + curve.dashes : ''}`;
    return [pieces.filter((piece) => piece.length > 1).map((piece) => path(piece, height, style, false, curve.name)),
            dots.map(([at, value, title, shown]) =>
              dot(x(at), y(value), paint(curve.key), title ?? `${curve.name}, step ${at}: ${+shown.toPrecision(4)}`, shown))];
  };
  // Few curves have their names beside their ends where the screen is wide enough; otherwise there is a legend.
  const words = curves.map((curve) => {
    const shown = curve.points.filter(([, value]) => value !== null).map(([, , , value]) => value);
    return !shown.length ? '' : bytes ? 'at most ' + bytesText(Math.max(...shown)) : 'at the end ' + numberText(shown.at(-1));
  });
  const beside = curves.length <= 4 && curves.every((curve) => curve.name.length <= 24) ? ' beside' : '';
  const names = (beside ? curves : []).map((curve, i) => ({curve, words: words[i], end: curve.points.findLast(([, value]) => value !== null)}))
                    .filter(({end}) => end).map((name) => ({...name, y: y(name.end[1])})).sort((a, b) => a.y - b.y);
  names.forEach((name, i) => { name.y = Math.max(name.y, i ? names[i - 1].y + 32 : top); });
  names.reverse().forEach((name, i) => { name.y = Math.min(name.y, i ? names[i - 1].y - 32 : top + plot - 14); });
  const foot = ends ?? (bands.length ? ['start of the step', 'end of the step'] : [`step ${left}`, `step ${right}`]);
  return [
    html('div', {class: beside}, legend('', curves.map((curve, i) => [[curve.name, words[i]].filter(Boolean).join(', '), curve.key, curve.dashes]))),
    html('figure', {class: 'axes' + beside}, chart(height, label,
      lines.map(([value, words]) => [line(0, y(value), 100, y(value), 'grid'), tick(y(value), words)]),
      bands.map(({key, begin, end, name}) => [rect(x(begin), 0, x(end) - x(begin), band, 'band ' + paint(key), name),
        clipped(x(begin), 1, x(end) - x(begin), name, key), line(x(begin), band, x(begin), top + plot, 'border')]),
      text(0, top + plot + 17, 'start', 'axis', foot[0]), text(100, top + plot + 17, 'end', 'axis', foot[1]),
      curves.map(draw),
      names.map(({curve, words, y}) => [
        svg('circle', {cx: '100%', cy: y, r: 4, transform: 'translate(6)', class: 'end ' + paint(curve.key)}),
        svg('text', {x: '100%', dx: 14, class: 'name end', y: y + 4}, curve.name), svg('text', {x: '100%', dx: 14, class: 'axis end', y: y + 18}, words)]))),
  ];
}

// ---- What is shown of a record.

/** Its runs, each with what --json prints of it and, as `more`, what it leaves out. */
const runsOf = ({kind, record, charts}) =>
  (kind === 'comparison' ? Object.entries(record.modes) : [['', record]]).map(([name, run], i) => ({...run, name, more: charts[i]}));

/** "cuda:0", "cuda:1 to cuda:63", "cpu:0, cpu:4 to cpu:7": devices by their positions, ascending. */
function nameDevices(names, members) {
  const ranges = [];
  for (const member of members) ranges.at(-1)?.at(-1) === member - 1 ? ranges.at(-1).push(member) : ranges.push([member]);
  const rest = ranges.slice(3).flat().length;
  return ranges.slice(0, 3).map((range) => names[range[0]] + (range.length > 1 ? (range.length > 2 ? ' to ' : ', ') + names[range.at(-1)] : '')).join(', ') +
         (rest ? ` and ${rest} more` : '');
}
/** Devices with equal keys as one: [{first, device, name, each}], where each adds to the name that it is one of several. */
function deviceSets(devices, key) {
  const sets = new Map();
  devices.forEach((device, i) => {
    const text = JSON.stringify(key(device, i));
    sets.set(text, [...(sets.get(text) ?? []), i]);
  });
  return [...sets.values()].map((members) => {
    const name = nameDevices(devices.map(({device}) => device), members), several = members.length > 1;
    return {first: members[0], device: devices[members[0]], name, each: name + (several ? ', each' : ''), several};
  });
}

/** A bar for all devices with the same peak and capacity; two of them where plan and measurement differ. */
const memoryKey = (d) => [d.peak_bytes_by_category, d.planned_peak_bytes_by_category, d.capacity_bytes];
const byteParts = (bytes, keyOf) => Object.entries(bytes).map(([name, value]) => ({name, key: keyOf(name), value, text: bytesText(value)}));
const peakBars = (devices) => deviceSets(devices, memoryKey).flatMap(({device: d, each}) => {
  const bar = (label, bytes, categories) => ({label, total: bytesText(bytes), parts: byteParts(categories, (category) => category)});
  const planned = JSON.stringify(d.peak_bytes_by_category) === JSON.stringify(d.planned_peak_bytes_by_category) || !d.planned_peak_bytes;
  const measured = bar(planned ? each : each + ', measured', d.peak_bytes, d.peak_bytes_by_category);
  if (d.capacity_bytes) Object.assign(measured, {capacity: d.capacity_bytes, total: `${measured.total} of ${bytesText(d.capacity_bytes)}`});
  return planned ? [measured] : [bar(each + ', planned', d.planned_peak_bytes, d.planned_peak_bytes_by_category), measured];
});

const timeBars = ({more, phases, waits}) => more.devices.map(({device, step_seconds}) => {
  const part = (name, key, seconds) => ({name, key, value: seconds / more.steps, text: secondsText(seconds / more.steps)});
  return {label: device, total: secondsText(step_seconds), parts: [
    ...phases.filter((row) => row.device === device && row.phase !== 'wait').map((row) => part(row.phase, phasePaint(row.phase), row.seconds)),
    ...waits.filter((row) => row.device === device).map((row) => part('wait for ' + row.cause, 'wait', row.seconds))]};
});

// From where to where each phase moves bytes, in the order of a step, and what; phases without that are work.
const MOVEMENTS = [
  ['stage', 'host to devices', 'samples, from the host\'s memory'],
  ['scatter', 'first to others', 'each device\'s samples'],
  ['replicate', 'first to others', 'parameters'],
  ['forward'],
  ['gather', 'others to output', 'outputs of all devices, for the loss'],
  ['loss'],
  ['scatter_grad', 'output to others', 'gradients of the outputs'],
  ['backward'],
  ['reduce', 'among all', 'sums of gradients'],
  ['optimizer'],
  ['broadcast', 'first to others', 'parameters'],
];
// With more devices, those that take the same part share a column.
const COLUMNS_APART = 8;

/** The columns after the host's, and for each phase {name, key, sources, sinks, marks: [[column, bytes]], title} or {name, key, boxes: [[column, seconds]]}. */
function movements({config, devices, phases, more}) {
  const output = more.output_device;
  const sets = deviceSets(devices, (d, i) => devices.length <= COLUMNS_APART || i === 0 || i === output ? i : 'samples ' + d.samples_per_step);
  const columnOf = (device) => 1 + Math.max(0, sets.findIndex((set) => set.first === device));
  const without = (device) => sets.flatMap((set, i) => set.first === device ? [] : [i + 1]);
  const rows = MOVEMENTS.map(([phase, usual, cargo]) => {
    const name = phasePaint(phase), moved = (column) => column ? more.devices[sets[column - 1].first].moved[phase] ?? 0 : 0;
    if (!usual) {
      const boxes = without(-1).flatMap((column) => {
        const {device, step_seconds, moved} = more.devices[sets[column - 1].first];
        const seconds = sum(phases?.filter((row) => row.device === device && row.phase === phase).map((row) => row.seconds) ?? []) / more.steps;
        // Devices that send their outputs to another only clear their totals in the phase of the loss.
        const elsewhere = phase === 'loss' && config.loss_at === 'gathered' && column !== columnOf(output);
        const works = !elsewhere && (step_seconds ? seconds > 0 : phase in moved);
        return works ? [[column, seconds, `${name} on ${device}${seconds ? ': ' + secondsText(seconds) : ''}`]] : [];
      });
      return boxes.length ? {name, key: name, boxes} : null;
    }
    const way = phase === 'reduce' && config.reduce === 'device0' ? 'others to first' : phase === 'broadcast' && config.shard !== 'none' ? 'among all' : usual;
    const center = /output/.test(way) ? output : 0;
    const all = without(-1);
    let [sources, sinks] = way === 'host to devices' ? [[0], all] : way === 'among all' ? [all, all] : [[columnOf(center)], without(center)];
    if (/^others/.test(way)) [sources, sinks] = [sinks, sources];
    // The bytes stand where each device's part is: at the other end from a single source or sink, unless only the sink counts them.
    if (way === 'others to first') sources = sources.filter(moved);
    else if (way !== 'others to output') sinks = sinks.filter(moved);
    const marks = (way === 'others to first' ? sources : sinks).filter(moved).map((column) => [column, moved(column)]);
    return marks.length ? {name, key: name, sources, sinks, marks, title: `${name}: ${cargo}`} : null;
  });
  return {sets, rows: rows.filter(Boolean)};
}

// A capacity beyond this many times the peak has no line: it would flatten the chart.
const CAPACITY_DRAWN = 3;
// From the bottom up: what stays, then what comes and goes. Fragmentation is drawn behind them.
const STACK = ['parameters', 'optimizer', 'gradients', 'dataset', 'workspace', 'staging', 'communication', 'activations'];
/** Values at each moment, from those at the moments at which they change. */
function spread(changes, moments) {
  const values = new Array(moments).fill(0);
  changes.forEach(([moment, value], i) => values.fill(value, moment, changes[i + 1]?.[0] ?? moments));
  return values;
}
/** The sum of the blocks at each moment. */
const heldBytes = ({moments, categories}) => Object.values(categories).map((changes) => spread(changes, moments))
                                                   .reduce((all, values) => all.map((bytes, m) => bytes + values[m]));
/** The phases of a step: [{name, phase, begin, end}]. */
const phaseBands = ({moments, phases}) =>
  phases.map(([begin, phase], i) => ({name: phase === 'step' ? 'start' : phase, phase, begin, end: phases[i + 1]?.[0] ?? moments}));
const bandPaint = (phase) => phase === 'step' ? 'stage' : phasePaint(phase);

/** Of "ddp fp16 seed 1": a scheme has a color, a precision a kind of line, for all seeds. */
function lines() {
  const schemes = [], precisions = [], position = (name, names) => names.includes(name) ? names.indexOf(name) : names.push(name) - 1;
  return (name) => {
    const [scheme, precision] = name.split(' ');
    return {key: `series${position(scheme, schemes) % 4 + 1}`, dashes: position(precision, precisions) % 4};
  };
}

/** Charts by name: of the report's data, and of the run and the device that the element names. Null where there is nothing to draw. */
const charts = {
  peaks(data) {
    const runs = runsOf(data);
    const groups = [...Object.entries(data.refused ?? {}).map(([name, devices]) => ({title: name + ', does not fit', bars: peakBars(devices)})),
                    ...runs.map((run) => ({title: run.name, bars: peakBars(run.devices)}))];
    return drawBars('Peak memory of each device by category', groups, 'memory');
  },

  /** On a scale of its own: it may be larger than all pools. */
  outside(data) {
    const bars = deviceSets(runsOf(data)[0].devices.filter((d) => d.outside_bytes > 0), (d) => d.outside_bytes).map(({device: d, each}) => {
      const owners = Object.keys(d.outside_bytes_by_owner).length ? d.outside_bytes_by_owner : {outside: d.outside_bytes};
      return {label: each, total: bytesText(d.outside_bytes), parts: byteParts(owners, () => 'outside')};
    });
    const drawn = drawBars('Memory outside the pools', [{title: '', bars}]);
    return drawn && titled('Outside the pools', drawn);
  },

  times: (data) => drawBars('Time of a step by phase, for each device', runsOf(data).map((run) => ({title: run.name, bars: timeBars(run)})), 'phases'),

  communication(data, index) {
    const {communication, more} = runsOf(data)[index];
    const bars = communication.filter((row) => row.device === more.communication_of).map((row) => {
      const late = row.late_hidden_seconds + row.late_exposed_seconds;
      const part = (name, seconds) => ({name, key: name, value: seconds / more.steps, text: secondsText(seconds / more.steps)});
      const total = [bytesText(row.bytes_per_step), secondsText(row.seconds / more.steps), ...(late > 0 ? ['late peers ' + secondsText(late / more.steps)] : [])];
      return {label: row.name, total: total.join(', '), parts: [
        part('hidden', row.hidden_seconds), part('exposed', row.exposed_seconds),
        part('late peers, hidden', row.late_hidden_seconds), part('late peers, exposed', row.late_exposed_seconds)]};
    });
    return drawBars('Communication hidden and exposed, bucket by bucket', [{title: '', bars}], 'communication');
  },

  speed(data) {
    const runs = runsOf(data), rounds = Math.max(...runs.map((run) => run.samples_per_second_of_rounds.length));
    const bars = runs.map(({name, samples_per_second: median, samples_per_second_of_rounds: rounds}) => {
      const [least, most] = [Math.min(...rounds), Math.max(...rounds)];
      const noise = rounds.length > 1 && median > 0 ? ` \u00b1${fixed((most - least) / 2 / median * 100, 0)} %` : '';
      return {label: name, total: `${counted(median)}${noise} samples/s`, whisker: rounds.length > 1 ? [least, most] : null,
              parts: [{name: 'median', key: 'series1', value: median, text: counted(median) + ' samples/s'}]};
    });
    return [drawBars('Samples per second under each scheme', [{title: '', bars}]),
            rounds > 1 ? html('p', {class: 'soft'}, 'Bars: the median of the rounds. Whiskers: the slowest and the fastest round.') : null];
  },

  /** Two bars for each setting, on a linear axis: what is mere rounding has no width. */
  lab({record}, index) {
    const {settings, measures} = record.experiments[index], most = Math.max(...settings.map((setting) => setting.planted));
    const wrongness = (value) => value === 0 ? '0' : value.toPrecision(2).replace(/\.0(?=e|$)/, '').replace(/e([+-])(\d)$/, 'e$10$2');
    const bar = (setting, name, key, value) =>
      ({label: `${setting}, ${name}`, total: wrongness(value), parts: [{name, key, value: value < 1e-3 * most ? 0 : value, text: wrongness(value)}]});
    const bars = settings.flatMap(({name, planted, without}) => [
      bar(name, 'with the bug', 'exposed', planted), bar(name, 'without it', 'optimizer', without)]);
    return drawBars(measures, [{title: '', bars}]);
  },

  /** From the peak of the device that holds least to that of the device that holds most: each row begins where the one before ended. */
  difference(data) {
    const {devices, more} = runsOf(data)[0], by = (better) => devices.reduce((a, b) => better(b.peak_bytes, a.peak_bytes) ? b : a);
    const least = by((a, b) => a < b), most = by((a, b) => a > b);
    if (least.peak_bytes === most.peak_bytes) return null;
    const rows = [{label: `${least.device} at its peak`, begin: 0, end: least.peak_bytes, text: bytesText(least.peak_bytes)}];
    const add = (label, key, bytes) => {
      const begin = rows.at(-1).end;
      rows.push({label, begin, end: begin + bytes, key, text: (bytes < 0 ? '\u2212' : '+') + bytesText(Math.abs(bytes))});
    };
    let rest = 0;
    for (const {category, bytes, tensors} of more.differences) {
      // Categories that differ by little share a row.
      if (Math.abs(bytes) < 0.005 * most.peak_bytes) {
        rest += bytes;
        continue;
      }
      const names = tensors.slice(0, 2).map(([bytes, name]) => `${name} ${bytesText(bytes)}`).concat(tensors.length > 2 ? `${tensors.length - 2} more` : []);
      add(names.length ? `${category}: ${names.join(', ')}` : category, category, bytes);
    }
    if (rest) add('smaller differences', null, rest);  // of several categories: no color of its own
    rows.push({label: `${most.device} at its peak`, begin: 0, end: most.peak_bytes, text: bytesText(most.peak_bytes)});
    const rowHeight = 48, above = 19, height = 22, largest = Math.max(...rows.map((row) => row.end)), x = (bytes) => 100 * bytes / largest;
    const label = `Why ${most.device} holds more than ${least.device}`;
    return titled(label, html('figure', {}, chart(rowHeight * rows.length, label, rows.map((row, i) => {
      const top = rowHeight * i + above, [left, right] = [Math.min(row.begin, row.end), Math.max(row.begin, row.end)];
      return [shortened(0, top - 18, '76%', '', row.label),
              text(100, top - 5, 'end', 'name', row.text), rect(0, top, 100, height, 'track'),
              rect(Math.min(x(left), 99.85), top, Math.max(0.15, x(right) - x(left)), height, row.key ? 'part ' + paint(row.key) : 'total',
                   `${row.label}: ${row.text}`, row.end - row.begin),
              i + 1 < rows.length ? line(x(row.end), top, x(row.end), top + rowHeight + height, 'border') : null];
    }))));
  },

  /** A sequence diagram: a column for each memory, a row for each phase with arrows or boxes. */
  movement(data) {
    const {sets, rows} = movements(runsOf(data)[0]);
    const samples = (count) => `${counted(count)} sample${count === 1 ? '' : 's'}`;
    const columns = [['host', ''], ...sets.map(({device, name, several}) => [name, samples(device.samples_per_step) + (several ? ' each' : '')])];
    const names = 15, head = 40, row = 38, bottom = head + row * rows.length, width = (100 - names) / columns.length;
    const x = (column) => names + width * (column + 0.5);
    const tipOf = (column, y, side, key, title) => svg('svg', {x: across(x(column)), y, width: 1, height: 1, overflow: 'visible'},
                                                        svg('path', {d: `M0 0L${-9 * side} -5L${-9 * side} 5Z`, class: 'tip ' + PAINTS[key]}, tip(title)));
    const heads = columns.map(([name, note], i) => [
      text(x(i), 13, 'middle', 'strong', name), text(x(i), 29, 'middle', 'axis', note), line(x(i), head - 4, x(i), bottom, 'border')]);
    const shapes = rows.map((r, i) => {
      const y = head + row * i + 23, name = text(0, y + 4, 'start', 'name', r.name);
      if (r.boxes) {
        const boxes = r.boxes.map(([column, seconds, title]) => [
          rect(x(column) - 0.38 * width, y - 12, 0.76 * width, 24, 'part ' + paint(r.key), title, seconds),
          text(x(column), y + 5, 'middle', 'on ' + PAINTS[r.key], seconds ? secondsText(seconds) : '')]);
        return svg('g', {class: 'row', 'data-name': r.name, 'data-at': r.boxes.map(([column]) => column)}, name, boxes);
      }
      const ends = [...r.sources, ...r.sinks], left = Math.min(...ends), right = Math.max(...ends);
      const sources = r.sources.filter((column) => !r.sinks.includes(column));
      return svg('g', {class: 'row', 'data-name': r.name, 'data-from': r.sources, 'data-to': r.sinks},
              name, line(x(left), y, x(right), y, 'arrow ' + PAINTS[r.key]),
              sources.map((column) => dot(x(column), y, 'tip ' + PAINTS[r.key], r.title)),
              sources.length < r.sources.length
                ? [tipOf(left, y, -1, r.key, r.title), tipOf(right, y, 1, r.key, r.title),
                   r.sinks.filter((column) => column > left && column < right).map((column) => dot(x(column), y, 'tip ' + PAINTS[r.key], r.title))]
                : r.sinks.map((column) => tipOf(column, y, Math.min(...sources) < column ? 1 : -1, r.key, r.title)),
              r.marks.map(([column, bytes]) =>
                svg('text', {x: across(x(column)), y: y - 9, 'text-anchor': 'middle', class: 'axis halo', 'data-value': bytes}, bytesText(bytes))));
    });
    const drawn = chart(bottom, 'What moves where in a step, phase by phase', heads, shapes);
    return html('div', {class: 'scroll'}, html('figure', {style: `min-width:${96 + 84 * columns.length}px`}, drawn));
  },

  /** Bytes over the changes of a step: a stack of categories in which every large block is a shape of its own, before the extent of all blocks. */
  memory(data, run, index) {
    const {devices, more} = runsOf(data)[run], device = devices[index], memory = more.devices[index].memory, {moments, peak} = memory;
    const reach = (d, peak) => Math.max(peak, d.planned_peak_bytes, d.capacity_bytes <= CAPACITY_DRAWN * peak ? d.capacity_bytes : 0);
    const scale = Math.max(...devices.map((d, i) => more.devices[i].memory ? reach(d, more.devices[i].memory.peak.bytes) : 0));
    const capacity = device.capacity_bytes <= scale ? device.capacity_bytes : 0;
    const band = 20, top = capacity ? 70 : 54, plot = 250, height = top + plot + 22;
    const x = (moment) => 100 * moment / moments, y = (bytes) => top + plot * (1 - bytes / (scale * 1.02));
    const base = new Array(moments).fill(0), shapes = [], names = [];

    /** Draws what lies on `base` from the moment `first` on, and raises `base` by it. */
    const stack = (first, heights, category, title) => {
      const upper = [], lower = [];
      heights.forEach((bytes, i) => {
        for (const moment of [first + i, first + i + 1]) {
          upper.push([x(moment), y(base[first + i] + bytes)]);
          lower.push([x(moment), y(base[first + i])]);
        }
        base[first + i] += bytes;
      });
      const needed = (points) => points.filter((p, i) => !i || i === points.length - 1 || p[1] !== points[i - 1][1] || p[1] !== points[i + 1][1]);
      shapes.push(path([...needed(upper), ...needed(lower).reverse()], height, 'block ' + paint(category), true, title));
    };

    /** Writes the category's name between two levels where they are far enough apart for long enough. */
    const nameLayer = (category, bottom, top) => {
      let begin = 0, low = Infinity, high = 0, best = {length: Math.max(2, Math.floor(moments * 0.18)) - 1};
      for (let m = 0; m < moments; ++m) {
        const upper = y(top[m]), under = y(bottom[m]);
        if (Math.min(low, under) - Math.max(high, upper) < 15) [begin, low, high] = [under - upper >= 15 ? m : m + 1, Infinity, 0];
        [low, high] = [Math.min(low, under), Math.max(high, upper)];
        if (begin <= m && m + 1 - begin > best.length) best = {length: m + 1 - begin, x: (x(begin) + x(m + 1)) / 2, y: (low + high) / 2 + 4};
        if (begin > m) [low, high] = [Infinity, 0];
      }
      if (best.x !== undefined) names.push(text(best.x, best.y, 'middle', isPale(category) ? 'over' : 'on ' + PAINTS[category], category));
    };

    // Gaps below the highest block cost memory where it lies above the largest sum of blocks.
    const most = heldBytes(memory)[peak.moment], gaps = peak.bytes > most;
    const extent = spread(memory.extent, moments).map((bytes) => bytes > most ? bytes : 0);
    if (gaps) {
      stack(0, extent, 'fragmentation', `fragmentation: gaps between blocks, ${bytesText(peak.bytes - most)} beyond the largest sum of blocks`);
      base.fill(0);
    }
    const layers = STACK.filter((category) => memory.categories[category]);
    for (const category of layers) {
      const bottom = [...base], total = spread(memory.categories[category], moments);
      for (const {first, end, bytes, tensor, layer, phase} of memory.blocks.filter((block) => block.category === category)) {
        const holder = `${tensor}${layer ? ', layer ' + layer : ''}. Allocated in ${phase}, held over changes ${first} to ${end - 1}`;
        stack(first, new Array(end - first).fill(bytes), category, `${category} ${bytesText(bytes)}: ${holder}`);
      }
      const rest = total.map((bytes, m) => bottom[m] + bytes - base[m]);
      if (rest.some((bytes) => bytes > 0)) stack(0, rest, category, `${category}: smaller blocks, at most ${bytesText(Math.max(...total))}`);
      nameLayer(category, bottom, base);
    }
    if (gaps) nameLayer('fragmentation', base, extent);
    const all = phaseBands(memory), isWide = ({begin, end}) => x(end) - x(begin) >= 7;
    const bands = all.map(({phase, name, begin, end}) => [
      rect(x(begin), 0, x(end) - x(begin), band, 'band ' + paint(bandPaint(phase)), `${name}: changes ${begin} to ${end - 1}`),
      isWide({begin, end}) ? clipped(x(begin), 1, x(end) - x(begin), name, bandPaint(phase)) : null,
      begin > 0 ? line(x(begin), top, x(begin), top + plot, 'border') : null,
    ]);
    const at = (x(peak.moment) + x(peak.moment + 1)) / 2;
    const level = (bytes, ...styles) => styles.map((style) => line(0, y(bytes), 100, y(bytes), style));
    return [
      html('figure', {class: 'axes'}, chart(height, `Memory of ${device.device} over one step, by category`,
        byteTicks(scale).map((bytes) => [line(0, y(bytes), 100, y(bytes), 'grid'), tick(y(bytes), bytesText(bytes))]),
        text(0, top + plot + 17, 'start', 'axis', 'start of the step'), text(100, top + plot + 17, 'end', 'axis', `${counted(moments - 1)} changes`),
        shapes, bands, names,
        capacity ? [level(capacity, 'beneath', 'capacity'), text(100, band + 33, 'end', 'limit', 'capacity ' + bytesText(capacity))] : null,
        device.planned_peak_bytes > 0 ? level(device.planned_peak_bytes, 'plan') : null,
        dot(at, y(peak.bytes), 'peak', `peak: ${bytesText(peak.bytes)} (${counted(peak.bytes)} bytes) in ${peak.place}`, peak.bytes),
        shortened(0, band + 4, '100%', 'strong', `peak ${bytesText(peak.bytes)} in ${peak.place}`)),
        device.planned_peak_bytes > peak.bytes
          ? html('figcaption', {}, `The plan's peak of ${bytesText(device.planned_peak_bytes)} (dashed) is reached in another step or in evaluation.`) : null),
      legend('memory', [...layers, ...(gaps ? ['fragmentation'] : [])].map((category) => [category, category])),
      legend('phases', all.map(({name, phase}) => [name, bandPaint(phase)])),
    ];
  },

  /** A curve of the device that holds most under each scheme, over a step of which forward and backward take the same width under all. */
  overlay(data) {
    const PARTS = [['start', 'stage', 0, 0.1], ['forward and loss', 'forward', 0.1, 0.5], ['backward', 'backward', 0.5, 0.9], ['update', 'update', 0.9, 1]];
    const lineOf = lines();
    const curves = runsOf(data).flatMap(({name, more}) => {
      const {device, memory} = more.devices.find(({memory}) => memory) ?? {};
      if (!memory) return [];
      const phases = phaseBands(memory), held = heldBytes(memory), forward = phases.find(({phase}) => phase === 'forward');
      const backward = phases.find(({phase, begin}) => phase === 'backward' && begin > forward?.begin);
      const last = phases.findLast(({phase}) => phase === 'backward');
      if (!backward) return [];
      const bounds = [0, forward.begin, backward.begin, last.end, memory.moments];
      const points = PARTS.flatMap(([, , begin, end], p) =>
        held.slice(bounds[p], bounds[p + 1]).map((bytes, m, part) => [begin + (end - begin) * m / part.length, bytes]));
      return [{name: `${name}, ${device}`, ...lineOf(name), steps: true, points: [...points, [1, held.at(-1)]]}];
    });
    const label = 'The device that holds most under each scheme';
    const drawn = drawCurves(label, curves, {bytes: true, bands: PARTS.map(([name, key, begin, end]) => ({name, key, begin, end}))});
    return drawn && titled(label, drawn);
  },

  /** Spans on an axis of time: a lane for each stream, nested spans below the span they are in. */
  step(data) {
    const shown = runsOf(data)[0].more.devices.filter(({step}) => step), begin = Math.min(...shown.map(({step}) => step.begin));
    const length = Math.max(1, ...shown.map(({step}) => step.end - begin));
    const groups = [{name: 'host', lanes: [['data', shown[0].step.host]]},
                    ...shown.map(({device, step}) => ({name: device, lanes: ['compute', 'communication', 'copy'].map((stream) => [stream, step[stream]])}))];
    const row = 21, laneLabel = 17, deviceLabel = 22, axis = 22, shapes = [];
    let top = axis;
    for (const group of groups) {
      const lanes = group.lanes.filter(([, spans]) => spans.length);
      if (!lanes.length) continue;
      shapes.push(line(0, top + 2, 100, top + 2, 'border'), text(0, top + 17, 'start', 'strong', group.name));
      top += deviceLabel;
      for (const [stream, spans] of lanes) {
        shapes.push(text(0, top + 12, 'start', 'axis', stream));
        top += laneLabel;
        for (const span of spans) {
          const x = 100 * (span.begin - begin) / length, nanoseconds = span.end - span.begin, width = 100 * nanoseconds / length, y = top + row * span.depth;
          const title = `${span.name}: ${secondsText(nanoseconds * 1e-9)}${span.bytes ? ', moved ' + bytesText(span.bytes) : ''}, in step ${span.step + 1}`;
          const key = phasePaint(span.phase);
          shapes.push(rect(x, y, width, row - 1, 'part ' + paint(key), title, nanoseconds), width >= 7 ? clipped(x, y + 1, width, span.name, key) : null);
        }
        top += row * (1 + Math.max(...spans.map((span) => span.depth))) + 4;
      }
    }
    const lines = ticks(length * 1e-9).filter((time) => time <= 0.97e-9 * length).map((time) => {
      const x = 100 * time * 1e9 / length;
      return [line(x, axis - 6, x, top, 'grid'), text(x, axis - 9, x > 90 ? 'end' : x > 10 ? 'middle' : 'start', 'axis', secondsText(time))];
    });
    return html('figure', {}, chart(top, 'One step by device and stream', lines, shapes));
  },

  /** Losses, accuracies and loss scales, side by side. */
  learning({record, charts: [more]}) {
    const last = record.first_step + Math.max(1, record.step_losses.length);
    const epochs = (key) => record.epochs.flatMap((epoch, i) => epoch[key] === null ? [] : [[more.epoch_ends[i], epoch[key]]]);
    const {initial, final, changes} = record.loss_scale ?? {};
    const scales = changes?.length ? [
      [record.first_step + 1, initial], ...changes.map((change) => [change.step + 1, change.loss_scale]), [last, final]] : [];
    const drawn = [
      ['Loss over the steps', drawCurves('Loss over the steps', [
        {name: 'loss of each step', key: 'series1', points: record.step_losses.map((loss, i) => [record.first_step + i + 1, loss])},
        {name: 'test loss', key: 'series2', dots: true, points: epochs('test_loss')}])],
      ['Test accuracy over the epochs', drawCurves('Test accuracy over the epochs', [
        {name: 'test accuracy', key: 'series3', dots: true, points: epochs('test_accuracy')}])],
      ['Loss scale over the steps', changes?.length === 0
        ? html('p', {}, `The loss scale is ${counted(initial)} in every step.`)
        : drawCurves('Loss scale over the steps', [{name: 'loss scale', key: 'series4', steps: true, points: scales}], {logarithmic: true})],
    ];
    return html('div', {class: 'pair'}, drawn.filter(([, chart]) => chart).map(([label, chart]) => html('div', {}, titled(label, chart))));
  },

  /** Losses and accuracies of all runs on the same axes. */
  curves(data) {
    return [['Training loss over the steps', 'train_loss'], ['Test accuracy over the steps', 'test_accuracy']].map(([label, key]) => {
      const lineOf = lines();
      const curves = runsOf(data).map(({name, epochs, more}) => ({name, ...lineOf(name), dots: epochs.length === 1,
                                                                  points: epochs.map((epoch, i) => [more.epoch_ends[i], epoch[key]])}));
      const drawn = drawCurves(label, curves);
      return drawn && titled(label, drawn);
    });
  },

  /** The choices of what is recomputed, with the time that each adds from left to right and the peak of the fullest device, and that device's capacity. */
  frontier({record}) {
    const choices = record.frontier, most = choices.at(-1).added_time;
    const fullest = record.devices.reduce((a, b) => b.peak_bytes > a.peak_bytes ? b : a);
    const title = ({recompute, added_time, peak_bytes}) => recompute.length
      ? `${bytesText(peak_bytes)}, +${percent(added_time)}: --recompute ${recompute.join(',')}` : `nothing recomputed: ${bytesText(peak_bytes)}`;
    const points = choices.map((choice) => [choice.added_time, choice.peak_bytes, title(choice)]);
    const curves = [{name: 'peak, fullest device', key: 'series1', dots: true, steps: true, points}];
    // A capacity far above all peaks would leave no height to them.
    const capacity = fullest.capacity_bytes;
    if (capacity && capacity < 2 * choices[0].peak_bytes) curves.push({name: 'capacity', key: 'series2', dashes: 1, points: [[0, capacity], [most, capacity]]});
    return choices.length < 2 ? null : drawCurves('Peak memory of the fullest device against the time that recomputation adds', curves,
                                                  {bytes: true, ends: ['no time added', `+${percent(most)} of forward and backward`]});
  },
};

/** Fills every [data-chart="NAME"] in the element; data-run and data-device say of what, by position. One that has nothing to show leaves. */
function draw(element, data) {
  for (const place of element.querySelectorAll('[data-chart]')) {
    const drawn = charts[place.dataset.chart](data, +(place.dataset.run ?? 0), +(place.dataset.device ?? 0));
    if (drawn) place.replaceChildren(...[drawn].flat(Infinity).filter(Boolean));
    else place.remove();
  }
  fit(1);
}

// The name of a part stands in it whole or not at all; the label of a row is shortened. Text keeps its size while charts scale.
function fit(scale) {
  // The arrow keys scroll what has the focus.
  for (const box of document.querySelectorAll('.scroll')) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute('tabindex');
  }
  const texts = [
    ...[...document.querySelectorAll('svg.clipped')].map((box) => ({node: box.lastChild, width: box.width.baseVal.value * scale})),
    ...[...document.querySelectorAll('g.bar')].map(({ownerSVGElement: {width}, children: [label, total]}) =>
      ({node: label, width: width.baseVal.value * scale - total.getComputedTextLength() - 8})),
  ];
  for (const {node} of texts) node.textContent = node.dataset.words;
  const long = texts.filter(({node, width}) => node.x.baseVal[0].value + node.getComputedTextLength() > width);
  for (const text of long) {
    const room = text.width - 10;  // less the ellipsis
    text.count = text.node.classList.contains('name') ? text.node.dataset.words.length - 1 : 0;
    while (text.count > 0 && text.node.getSubStringLength(0, text.count) > room) --text.count;
  }
  for (const {node, count} of long) node.textContent = count === 0 ? '' : node.dataset.words.slice(0, count).trimEnd() + '\u2026';
  const plates = texts.filter(({node}) => node.previousSibling?.matches('.plate')).map(({node}) => [node.previousSibling, node.getComputedTextLength()]);
  for (const [plate, length] of plates) plate.setAttribute('width', length && length + 8);
}
addEventListener('resize', () => fit(1));

return {draw, fit, html};
})();
