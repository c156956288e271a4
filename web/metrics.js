// What the job measures (adaptdl.report): a curve for each metric, made when its first value comes. The first loss
// stands beside the job's own five plots, as their sixth.
import { h } from './dom.js';
import { PlotGroup } from './plot.js';

export const POINTS = 400; // of each curve: about what can be seen

const digits = (value) => String(Number(value.toPrecision(4)));

export class MetricPlots {
    constructor(section, box, beside) {
        Object.assign(this, { section, box, beside });
        this.clear();
    }

    clear() {
        this.group = new PlotGroup();
        this.names = [];
        this.box.replaceChildren();
        this.beside.querySelector('[data-metric]')?.remove();
        this.section.hidden = true;
    }

    // curves: [{name, steps, times, values}]
    update(curves) {
        const names = curves.map(({ name }) => name);
        if (names.join('\n') !== this.names.join('\n')) {
            this.clear();
            this.names = names;
            const loss = names.find((name) => /loss/i.test(name));
            for (const name of names) {
                const series = [{ name, key: 'value' }];
                const figure = this.group.add({ title: name, show: digits, series });
                const box = name === loss ? this.beside : this.box;
                box.append(h('div', { 'data-metric': name }, figure));
            }
        }
        this.section.hidden = !this.box.childElementCount;
        curves.forEach(({ steps, times, values }, i) =>
            this.group.plots[i].update(
                steps.map((step, at) => ({
                    step,
                    time: times[at],
                    value: values[at],
                    phase: 'Running',
                })),
            ),
        );
    }
}
