// Plots over time as SVG: axes with round numbers, one or two lines, bands where the job was not running,
// a cursor that follows the pointer or the arrow keys, and the same numbers as a table.
import { h, patch, s } from './dom.js';
import { NONE, clock } from './format.js';

const HEIGHT = 140;
const MARGIN = { left: 46, right: 10, top: 8, bottom: 20 };
const TABLE_ROWS = 100;
const TIME_STEPS = [
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400,
];

// The smallest of 1, 2, 5 times a power of ten that divides `span` into at most `count` parts.
export function niceStep(span, count) {
    const rough = span / count;
    const power = 10 ** Math.floor(Math.log10(rough));
    return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough * (1 - 1e-9));
}

// From min, which is not above 0, to max.
export function valueTicks(max, whole, min = 0) {
    const step = Math.max(niceStep(max - min, 4), whole ? 1 : 0);
    const ticks = [];
    const first = Math.floor(min / step + 1e-9);
    for (let i = first; i * step < max * (1 + 1e-9) || ticks.length < 2; i++) ticks.push(i * step);
    if (ticks.at(-1) < max * (1 - 1e-9)) ticks.push((first + ticks.length) * step);
    return ticks;
}

// Whole minutes, quarters of an hour, ... of local time.
export function timeTicks(from, to, count) {
    const step =
        TIME_STEPS.find((each) => (to - from) / each <= count) ??
        Math.ceil((to - from) / count / 86400) * 86400;
    const zone = -60 * new Date(1000 * from).getTimezoneOffset();
    const ticks = [];
    for (let tick = Math.ceil((from + zone) / step) * step - zone; tick <= to; tick += step)
        ticks.push(tick);
    return { ticks, step };
}

function timeLabel(time, step) {
    const date = new Date(1000 * time);
    if (step >= 86400) return date.toLocaleDateString('en-GB', { day: 'numeric', month: 'short' });
    return date.toLocaleTimeString(
        'en-GB',
        step < 60 ? {} : { hour: '2-digit', minute: '2-digit' },
    );
}

function tickLabel(value) {
    return new Intl.NumberFormat('en', {
        notation: value >= 1e4 ? 'compact' : 'standard',
        maximumSignificantDigits: 3,
    }).format(value);
}

// M and L commands; a missing value interrupts the line. Steps hold a value until the next sample.
function linePath(samples, key, x, y, steps) {
    let path = '';
    let pen = null;
    for (const sample of samples) {
        const value = sample[key];
        if (typeof value !== 'number') {
            if (pen && steps) path += `H${x(sample.time).toFixed(1)}`;
            pen = null;
            continue;
        }
        const [px, py] = [x(sample.time).toFixed(1), y(value).toFixed(1)];
        if (!pen) path += `M${px} ${py}h0.01`;
        else path += steps ? `H${px}V${py}` : `L${px} ${py}`;
        pen = sample;
    }
    return path;
}

// Stretches of time in which the job was not running: [[from, to]].
export function gaps(samples) {
    const found = [];
    for (let i = 0; i + 1 < samples.length; i++) {
        if (samples[i].phase === 'Running') continue;
        if (found.length && found.at(-1)[1] === samples[i].time)
            found.at(-1)[1] = samples[i + 1].time;
        else found.push([samples[i].time, samples[i + 1].time]);
    }
    return found;
}

// About two samples for each pixel are all that can be seen.
function thin(samples, most) {
    if (samples.length <= most) return samples;
    const stride = samples.length / most;
    const kept = [];
    for (let i = 0; i < most; i++) kept.push(samples[Math.floor(i * stride)]);
    kept.push(samples.at(-1));
    return kept;
}

// Plots that share a cursor: pointing at one shows the same moment in all.
export class PlotGroup {
    constructor() {
        this.plots = [];
        this.observer = new ResizeObserver(() => this.plots.forEach((plot) => plot.draw()));
    }

    add(options) {
        const plot = new Plot(this, options);
        this.plots.push(plot);
        this.observer.observe(plot.box);
        return plot.element;
    }

    update(samples) {
        this.plots.forEach((plot) => plot.update(samples));
    }

    point(time, speaker) {
        this.plots.forEach((plot) => plot.point(time, plot === speaker));
    }
}

class Plot {
    // series: [{name, key}]; show(value) -> text; whole: counts, drawn as steps; top: the least maximum.
    constructor(group, options) {
        Object.assign(this, { series: [], unit: '', whole: false, top: 0 }, options);
        this.group = group;
        this.samples = [];
        this.cursor = null;
        this.svg = s('svg', { role: 'img', height: HEIGHT });
        this.tip = h('div', { class: 'plot-tip', hidden: true });
        this.spoken = h('span', { class: 'hidden', 'aria-live': 'polite' });
        this.box = h(
            'div',
            {
                class: 'plot',
                tabindex: 0,
                role: 'group',
                'aria-label': `${this.title}: arrow keys read the values`,
            },
            this.svg,
            this.tip,
            this.spoken,
        );
        this.table = h('table', { class: 'plain' });
        this.details = h(
            'details',
            null,
            h('summary', null, 'as a table'),
            h('div', { class: 'scroll' }, this.table),
        );
        this.element = h('figure', null, this.caption(), this.box, this.details);
        this.listen();
    }

    caption() {
        const legend =
            this.series.length > 1 &&
            this.series.map((each, i) => h('span', { class: `legend line-${i}` }, each.name));
        return h(
            'figcaption',
            null,
            h('strong', null, this.title),
            ' ',
            h('span', { class: 'muted' }, this.unit),
            legend,
        );
    }

    listen() {
        this.box.addEventListener('pointermove', (event) => {
            const x = event.clientX - this.box.getBoundingClientRect().left;
            if (this.scale)
                this.group.point(this.scale.from + (x - MARGIN.left) / this.scale.perSecond, null);
        });
        this.box.addEventListener('pointerleave', () => this.group.point(null, null));
        this.box.addEventListener('blur', () => this.group.point(null, null));
        this.box.addEventListener('keydown', (event) => this.key(event));
        this.details.addEventListener('toggle', () => this.fillTable());
    }

    key(event) {
        const last = this.samples.length - 1;
        const at = this.cursor ?? last + (event.key === 'ArrowLeft' ? 1 : 0);
        const next = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
        if (last < 0 || (next === undefined && event.key !== 'Escape')) return;
        event.preventDefault();
        const sample = this.samples[Math.min(last, Math.max(0, next ?? 0))];
        this.group.point(event.key === 'Escape' ? null : sample.time, this);
    }

    update(samples) {
        this.samples = samples;
        this.draw();
        this.fillTable();
    }

    // [name, text] of each series in a sample.
    values(sample) {
        return this.series.map(({ name, key }) => [
            name,
            typeof sample[key] === 'number' ? this.show(sample[key]) : NONE,
        ]);
    }

    summary() {
        const numbers = this.samples
            .map((sample) => sample[this.series[0].key])
            .filter((v) => typeof v === 'number');
        if (!numbers.length) return `${this.title}: no values yet`;
        const [low, high] = [
            numbers.reduce((a, b) => Math.min(a, b)),
            numbers.reduce((a, b) => Math.max(a, b)),
        ];
        return (
            `${this.title} over time, ${this.series[0].name}: between ${this.show(low)} and ` +
            `${this.show(high)}, last ${this.show(numbers.at(-1))} ${this.unit}`
        );
    }

    draw() {
        const width = this.box.clientWidth;
        if (width < 80) return;
        const wanted = s('svg', {
            role: 'img',
            width,
            height: HEIGHT,
            'aria-label': this.summary(),
        });
        if (this.samples.length) wanted.append(...this.picture(width));
        else
            wanted.append(
                s('text', { x: width / 2, y: HEIGHT / 2, class: 'empty' }, 'no values yet'),
            );
        for (const name of ['width', 'height', 'aria-label'])
            this.svg.setAttribute(name, wanted.getAttribute(name));
        patch(this.svg, wanted);
        this.drawCursor();
    }

    picture(width) {
        const samples = thin(this.samples, 2 * width);
        const from = samples[0].time;
        const to = Math.max(samples.at(-1).time, from + 5);
        const largest = this.series.reduce(
            (most, { key }) => samples.reduce((a, sample) => Math.max(a, sample[key] ?? 0), most),
            this.top,
        );
        const least = this.series.reduce(
            (low, { key }) => samples.reduce((a, sample) => Math.min(a, sample[key] ?? 0), low),
            0,
        );
        const ticks = valueTicks(largest > 0 || least < 0 ? largest : 1, this.whole, least);
        const perSecond = (width - MARGIN.left - MARGIN.right) / (to - from);
        const perValue = (HEIGHT - MARGIN.top - MARGIN.bottom) / (ticks.at(-1) - ticks[0]);
        const x = (time) => MARGIN.left + (time - from) * perSecond;
        const y = (value) => HEIGHT - MARGIN.bottom - (value - ticks[0]) * perValue;
        this.scale = { from, perSecond, x, y };
        const times = timeTicks(from, to, Math.max(2, Math.floor(width / 95)));
        return [
            ...gaps(this.samples).map(([a, b]) =>
                s('rect', {
                    class: 'gap',
                    x: x(a).toFixed(1),
                    y: MARGIN.top,
                    width: (x(b) - x(a)).toFixed(1),
                    height: HEIGHT - MARGIN.top - MARGIN.bottom,
                }),
            ),
            ...ticks.flatMap((tick) => [
                s('line', {
                    class: 'rule',
                    x1: MARGIN.left,
                    x2: width - MARGIN.right,
                    y1: y(tick).toFixed(1),
                    y2: y(tick).toFixed(1),
                }),
                s(
                    'text',
                    { class: 'tick value', x: MARGIN.left - 6, y: (y(tick) + 4).toFixed(1) },
                    this.tick ? this.tick(tick) : tickLabel(tick),
                ),
            ]),
            ...times.ticks.map((tick) =>
                s(
                    'text',
                    {
                        class: 'tick time',
                        x: Math.min(x(tick), width - 24).toFixed(1),
                        y: HEIGHT - 4,
                    },
                    timeLabel(tick, times.step),
                ),
            ),
            ...this.series.map(({ key }, i) =>
                s('path', { class: `line line-${i}`, d: linePath(samples, key, x, y, this.whole) }),
            ),
        ];
    }

    point(time, speak) {
        if (time === null || !this.samples.length) {
            this.cursor = null;
        } else {
            const after = this.samples.findIndex((sample) => sample.time >= time);
            const i = after < 0 ? this.samples.length - 1 : after;
            const nearer = i > 0 && time - this.samples[i - 1].time < this.samples[i].time - time;
            this.cursor = nearer ? i - 1 : i;
        }
        this.drawCursor();
        if (speak && this.cursor !== null)
            this.spoken.textContent = `${clock(this.samples[this.cursor].time)}: ${this.values(
                this.samples[this.cursor],
            )
                .map((pair) => pair.join(' '))
                .join(', ')}`;
    }

    drawCursor() {
        this.svg.querySelectorAll('.cursor').forEach((each) => each.remove());
        const sample = this.cursor === null ? null : this.samples[this.cursor];
        this.tip.hidden = !sample;
        if (!sample || !this.scale) return;
        const at = this.scale.x(sample.time);
        this.svg.append(
            s('line', {
                class: 'cursor rule',
                x1: at,
                x2: at,
                y1: MARGIN.top,
                y2: HEIGHT - MARGIN.bottom,
            }),
        );
        this.series.forEach(({ key }, i) => {
            if (typeof sample[key] === 'number')
                this.svg.append(
                    s('circle', {
                        class: `cursor line-${i}`,
                        cx: at,
                        cy: this.scale.y(sample[key]),
                        r: 3.5,
                    }),
                );
        });
        const several = this.series.length > 1;
        this.tip.replaceChildren(
            ...[
                `${clock(sample.time)}${sample.phase === 'Running' ? '' : ` · ${sample.phase}`}` +
                    (sample.step === undefined ? '' : ` · step ${sample.step}`),
                ...this.values(sample).map(([name, value]) =>
                    several ? `${name} ${value}` : value,
                ),
            ].map((line) => h('div', null, line)),
        );
        const room = this.box.clientWidth - this.tip.offsetWidth;
        const left = at > room - 12 ? at - this.tip.offsetWidth - 8 : at + 8;
        this.tip.style.left = `${Math.max(0, left)}px`;
    }

    fillTable() {
        if (!this.details.open) return;
        const rows = this.samples.slice(-TABLE_ROWS).reverse();
        const wanted = h(
            'table',
            null,
            h(
                'caption',
                { class: 'muted' },
                rows.length < this.samples.length
                    ? `the newest ${rows.length} of ${this.samples.length} samples`
                    : 'newest first',
            ),
            h(
                'thead',
                null,
                h(
                    'tr',
                    null,
                    ['Time', 'Phase', ...this.series.map(({ name }) => name)].map((name) =>
                        h('th', { scope: 'col' }, name),
                    ),
                ),
            ),
            h(
                'tbody',
                null,
                rows.map((sample) =>
                    h(
                        'tr',
                        { 'data-key': sample.time },
                        h('th', { scope: 'row' }, clock(sample.time)),
                        h('td', null, sample.phase),
                        this.values(sample).map(([, value]) => h('td', null, value)),
                    ),
                ),
            ),
        );
        patch(this.table, wanted);
    }
}
