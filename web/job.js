// One job: its figures, its plots over time, what the rounds decided about it, its events and its log.
import { get, jobPath } from './api.js';
import { decisionsTable } from './decisions.js';
import { byId, h, setText, show } from './dom.js';
import {
    clock,
    dateTime,
    duration,
    factor,
    number,
    percent,
    places,
    resource,
    when,
} from './format.js';
import { idOf, isOver, phaseBadge, progressBar, swatch } from './jobs.js';
import { LogView } from './log.js';
import { MetricPlots, POINTS } from './metrics.js';
import { PlotGroup } from './plot.js';
import { useTable } from './use.js';

const DETAIL_MS = 1500; // between two fetches of the job's details
const EVENTS_SHOWN = 100;
const DECISIONS_SHOWN = 50;

function plots() {
    const group = new PlotGroup();
    const add = (options) => byId('plots').append(group.add(options));
    const one = (name, key) => [{ name, key }];
    add({ title: 'Replicas', whole: true, show: number, series: one('replicas', 'replicas') });
    add({
        title: 'Batch size',
        unit: 'examples',
        whole: true,
        show: number,
        series: one('batch size', 'batchSize'),
    });
    add({
        title: 'Speed',
        unit: 'examples/s',
        show: number,
        series: [
            { name: 'throughput', key: 'throughput' },
            { name: 'goodput', key: 'goodput' },
        ],
    });
    add({
        title: 'Statistical efficiency',
        show: percent,
        tick: percent,
        top: 1,
        series: one('efficiency', 'efficiency'),
    });
    add({
        title: 'Progress',
        unit: 'steps of the initial batch size',
        show: number,
        series: one('progress', 'progress'),
    });
    return group;
}

function facts(job, now) {
    const train = job.train ?? {};
    const replicas =
        `${job.readyReplicas} ready of ${job.replicas}, at least ${job.minReplicas ?? 0}` +
        (job.maxReplicas === null ? '' : `, at most ${job.maxReplicas}`);
    const needs = Object.entries(job.resources ?? {}).map(
        ([name, amount]) => `${name} ${resource(name, amount)}`,
    );
    const epoch =
        typeof train.epoch !== 'number'
            ? null
            : typeof train.targetEpochs === 'number'
              ? `${train.epoch} of ${train.targetEpochs}`
              : train.epoch;
    return [
        ['Replicas', replicas],
        ['On', places(job.allocation)],
        ['Each needs', needs.join(', ') || null],
        [
            'Batch size',
            job.train && `${number(train.batchSize)} (initially ${number(train.initBatchSize)})`,
        ],
        ['Throughput', job.train && `${number(train.throughput)} examples/s`],
        ['Efficiency', job.train && percent(train.efficiency)],
        ['Goodput', job.train && `${number(train.goodput)} examples/s`],
        ['Speedup', job.train && factor(train.speedup)],
        ['Epoch', epoch],
        ['Progress', job.train && progressBar(job, now)],
        [
            'Restarts',
            job.failures ? `${job.restarts}, ${job.failures} after failures` : job.restarts,
        ],
        ['Submitted', `${when(job.created, now)}, ${duration(now - job.created)} ago`],
        [
            'Finished',
            job.completed &&
                `${when(job.completed, now)}, after ${duration(job.completed - job.created)}`,
        ],
        ['Device time', duration(job.deviceSeconds)],
        ['Command', h('code', null, (job.command ?? []).join(' '))],
    ]
        .filter(([, value]) => value !== null && value !== undefined)
        .map(([name, value]) =>
            h('div', { 'data-key': name }, h('dt', null, name), h('dd', null, value)),
        );
}

function eventItem(event) {
    return h(
        'li',
        { 'data-key': event.seq },
        h(
            'time',
            { datetime: new Date(1000 * event.time).toISOString(), title: dateTime(event.time) },
            clock(event.time),
        ),
        h('span', { class: 'badge' }, event.type),
        h('span', null, event.message ?? ''),
    );
}

export class JobView {
    constructor() {
        this.id = null;
        this.plots = plots();
        this.metrics = new MetricPlots(byId('metrics-section'), byId('metrics'), byId('plots'));
        this.log = new LogView(byId('log'), byId('log-note'), () => !this.job || isOver(this.job));
        for (const id of ['log-rank', 'log-group', 'log-follow'])
            byId(id).addEventListener('change', () => this.openLog());
    }

    open(id) {
        this.id = id;
        this.job = null;
        this.busy = false;
        this.fetchedAt = -Infinity;
        this.events = [];
        this.plots.update([]);
        this.metrics.clear();
        for (const each of ['job-facts', 'job-phase', 'job-actions', 'job-decisions', 'events', 'use'])
            byId(each).replaceChildren();
        byId('use-section').hidden = true;
        byId('job-message').hidden = true;
        setText(byId('job-title'), id);
        this.choices('log-rank', ['0']);
        this.choices('log-group', [['', 'newest']]);
        byId('log-rank').value = '0';
        byId('log-group').value = '';
        this.reading = false; // its log: as soon as the job is known to be there
    }

    close() {
        this.id = null;
        this.log.close();
    }

    openLog() {
        this.reading = true;
        const group = byId('log-group').value;
        this.log.open(
            this.id,
            byId('log-rank').value,
            group === '' ? null : group,
            byId('log-follow').checked,
        );
    }

    choices(id, values) {
        const select = byId(id);
        show(
            select,
            values.map((each) => {
                const [value, text] = [each].flat();
                return h('option', { value, 'data-key': value }, text ?? value);
            }),
        );
    }

    // jobs: ns/name -> Job. Fetches the details too, unless that was done a moment ago.
    update(jobs, now) {
        const job = jobs.get(this.id);
        this.gone(!job);
        if (!job) {
            this.job = null;
            this.reading = false;
            this.log.close();
            return;
        }
        this.job = job;
        if (!this.reading) this.openLog();
        this.render(job, now);
        const pause = isOver(job) ? 10 * DETAIL_MS : DETAIL_MS;
        if (!this.busy && performance.now() - this.fetchedAt > pause) this.fetch();
    }

    // Of a job that is not there one sentence is left.
    gone(yes) {
        setText(byId('job-gone'), `There is no job ${this.id} (any more): it was deleted, or never was.`);
        byId('job-gone').hidden = !yes;
        for (const section of byId('job-view').querySelectorAll('section'))
            section.classList.toggle('gone', yes);
    }

    // The countdowns between two updates.
    tick(now) {
        if (this.job) show(byId('job-facts'), facts(this.job, now));
    }

    render(job, now) {
        show(byId('job-title'), swatch(job), h('span', null, idOf(job)));
        show(byId('job-phase'), phaseBadge(job));
        show(byId('job-facts'), facts(job, now));
        show(
            byId('job-actions'),
            h(
                'button',
                {
                    type: 'button',
                    'data-act': 'delete',
                    'data-job': idOf(job),
                    disabled: job.deleted,
                },
                'Delete',
            ),
        );
        const message = [job.reason, job.message].filter(Boolean).join(': ');
        setText(byId('job-message'), message);
        byId('job-message').hidden = !message;
        byId('job-message').classList.toggle('bad', job.phase === 'Failed');
        const use = useTable(job);
        show(byId('use'), use ?? []);
        byId('use-section').hidden = !use;
        const ranks = Math.max(1, job.replicas, Number(byId('log-rank').value) + 1);
        this.choices(
            'log-rank',
            Array.from({ length: ranks }, (_, rank) => String(rank)),
        );
        this.choices('log-group', [
            ['', 'newest'],
            ...Array.from({ length: job.group }, (_, i) => String(i + 1)).reverse(),
        ]);
    }

    async fetch() {
        this.busy = true;
        const { id } = this;
        try {
            const job = encodeURIComponent(id);
            const [history, curves, decisions, events] = await Promise.all([
                get(jobPath(id, '/history')),
                get(jobPath(id, `/metrics?points=${POINTS}`)),
                get(jobPath(id, `/decisions?limit=${DECISIONS_SHOWN}`)),
                get(`api/v1/events?since=${this.events.at(-1)?.seq ?? 0}&job=${job}`),
            ]);
            if (id !== this.id) return;
            this.plots.update(history.samples);
            this.metrics.update(curves.items);
            show(byId('job-decisions'), decisionsTable(decisions.items, false, true));
            byId('job-decisions').hidden = !decisions.items.length;
            byId('job-decisions-empty').hidden = decisions.items.length > 0;
            this.events = [...this.events, ...events.items].slice(-EVENTS_SHOWN);
            show(byId('events'), [...this.events].reverse().map(eventItem));
        } catch {
            // The connection's state is shown in the header, and the next update tries again.
        } finally {
            if (id === this.id) {
                this.busy = false;
                this.fetchedAt = performance.now();
            }
        }
    }
}
