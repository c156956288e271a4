// The tables of jobs: those that are not over, and those that are.
import { h } from './dom.js';
import { NONE, clock, dateTime, duration, number, percent, when } from './format.js';
import { lookOf } from './looks.js';

export const ROWS_MAX = 500; // of a table

export const isOver = (job) => job.phase === 'Succeeded' || job.phase === 'Failed';
export const idOf = (job) => `${job.namespace}/${job.name}`;
const shownName = (job) => (job.namespace === 'default' ? job.name : idOf(job));

export const swatch = (job) =>
    h('span', {
        class: `swatch ${lookOf(job.uid)}${isOver(job) ? ' over' : ''}`,
        'aria-hidden': 'true',
    });

export function phaseBadge(job) {
    const phase = job.deleted ? 'Deleting' : job.phase;
    return h('span', { class: `phase phase-${phase}` }, phase);
}

export function progressBar(job, now) {
    const done = job.train?.fractionDone;
    if (typeof done !== 'number') return h('span', { class: 'muted' }, NONE);
    const finish = isOver(job) ? null : job.train.estimatedFinish;
    return h(
        'span',
        { class: 'progress' },
        h('progress', { max: 1, value: done, 'aria-label': `progress of ${job.name}` }),
        h('span', null, percent(done)),
        typeof finish === 'number' &&
            h(
                'span',
                { class: 'muted', title: `estimated finish ${dateTime(finish)}` },
                `${duration(finish - now)} left, ${clock(finish).slice(0, 5)}`,
            ),
    );
}

const remove = (job) =>
    h(
        'button',
        {
            type: 'button',
            class: 'quiet',
            'data-act': 'delete',
            'data-job': idOf(job),
            disabled: job.deleted,
            'aria-label': `Delete ${job.name}`,
        },
        'Delete',
    );

// name: of the column; value: what sorts; cell: what is shown; number: right-aligned.
const NAME = {
    name: 'Job',
    value: shownName,
    cell: (job) => [swatch(job), h('a', { href: `#job=${idOf(job)}` }, shownName(job))],
};
const PHASE = { name: 'Phase', value: (job) => job.phase, cell: phaseBadge };
const RESTARTS = { name: 'Restarts', value: (job) => job.restarts, number: true };
const ACTION = { name: 'Action', cell: remove, fixed: true };
const measure = (name, key, show, title) => ({
    name,
    title,
    number: true,
    value: (job) => job.train?.[key],
    cell: (job) => show(job.train?.[key]),
});

export const ACTIVE = [
    NAME,
    PHASE,
    {
        name: 'Replicas',
        title: 'ready / wanted',
        number: true,
        value: (job) => job.replicas,
        cell: (job) => `${job.readyReplicas}/${job.replicas}`,
    },
    measure('Batch', 'batchSize', number, 'examples in a step, over all replicas'),
    measure('Throughput', 'throughput', number, 'examples a second'),
    measure(
        'Efficiency',
        'efficiency',
        percent,
        'statistical efficiency: progress of an example, compared with the initial batch size',
    ),
    measure('Goodput', 'goodput', number, 'throughput × efficiency'),
    { name: 'Progress', value: (job) => job.train?.fractionDone, cell: progressBar },
    RESTARTS,
    {
        name: 'Age',
        number: true,
        value: (job) => -job.created,
        cell: (job, now) => duration(now - job.created),
    },
    ACTION,
];

const ran = (job) => (typeof job.started === 'number' ? job.completed - job.started : null);

export const FINISHED = [
    NAME,
    PHASE,
    {
        name: 'Message',
        value: (job) => job.message,
        cell: (job) => h('span', { class: 'message' }, firstLine(job.message)),
    },
    {
        name: 'Took',
        title: 'from submission to the end',
        number: true,
        value: (job) => job.completed - job.created,
        cell: (job) => duration(job.completed - job.created),
    },
    {
        name: 'Ran',
        title: 'from the first start to the end',
        number: true,
        value: ran,
        cell: (job) => duration(ran(job)),
    },
    {
        name: 'Device time',
        number: true,
        value: (job) => job.deviceSeconds,
        cell: (job) => duration(job.deviceSeconds),
    },
    RESTARTS,
    {
        name: 'Finished',
        number: true,
        value: (job) => job.completed,
        cell: (job, now) => when(job.completed, now),
    },
    ACTION,
];

function firstLine(text) {
    const line = (text ?? '').split('\n').find((each) => each.trim()) ?? NONE;
    return line.length > 100 ? `${line.slice(0, 99)}…` : line;
}

function compare(a, b) {
    const missing = (value) => value === null || value === undefined || Number.isNaN(value);
    if (missing(a) || missing(b)) return missing(a) - missing(b);
    return typeof a === 'string' ? a.localeCompare(b) : a - b;
}

// Missing values come last whichever way the column is sorted.
export function sortJobs(jobs, columns, sort) {
    const column = columns.find((each) => each.name === sort.column);
    if (!column) return jobs;
    const sign = sort.descending ? -1 : 1;
    return [...jobs].sort((a, b) => {
        const [x, y] = [column.value(a), column.value(b)];
        const order = compare(x, y);
        return (x ?? null) === null || (y ?? null) === null ? order : sign * order;
    });
}

// Every word of the filter occurs in the job's name, phase or nodes.
export function filterJobs(jobs, filter) {
    const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
    return jobs.filter((job) => {
        const text = [idOf(job), job.phase, job.reason ?? '', ...(job.allocation ?? [])]
            .join(' ')
            .toLowerCase();
        return words.every((word) => text.includes(word));
    });
}

function header(columns, sort, table) {
    return h(
        'tr',
        { role: 'row' },
        columns.map((column) => {
            const sorted = column.name === sort.column;
            const order = sorted ? (sort.descending ? 'descending' : 'ascending') : null;
            return h(
                'th',
                {
                    scope: 'col',
                    role: 'columnheader',
                    class: column.number ? 'number' : null,
                    'aria-sort': column.fixed ? null : (order ?? 'none'),
                    'data-key': column.name,
                },
                column.fixed
                    ? h('span', { class: 'hidden' }, column.name)
                    : h(
                          'button',
                          {
                              type: 'button',
                              class: 'sort',
                              title: column.title,
                              'data-act': 'sort',
                              'data-table': table,
                              'data-column': column.name,
                          },
                          column.name,
                          h(
                              'span',
                              { class: 'arrow', 'aria-hidden': 'true' },
                              sorted ? (sort.descending ? '▼' : '▲') : '',
                          ),
                      ),
            );
        }),
    );
}

// The contents of a <table>. Roles are spelled out because narrow screens show rows as blocks, and
// browsers forget what a table is when it is not displayed as one.
export function jobsTable(table, columns, jobs, sort, now) {
    const rows = sortJobs(jobs, columns, sort)
        .slice(0, ROWS_MAX)
        .map((job) =>
            h(
                'tr',
                { role: 'row', 'data-key': job.uid },
                columns.map((column) => {
                    const shown = column.cell ? column.cell(job, now) : column.value(job);
                    const first = column === NAME;
                    return h(
                        first ? 'th' : 'td',
                        {
                            role: first ? 'rowheader' : 'cell',
                            scope: first ? 'row' : null,
                            class: column.number ? 'number' : null,
                            'data-label': first || column.fixed ? null : column.name,
                        },
                        shown,
                    );
                }),
            ),
        );
    return [
        h('thead', { role: 'rowgroup' }, header(columns, sort, table)),
        h('tbody', { role: 'rowgroup' }, rows),
    ];
}
