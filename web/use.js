// What each replica of a job uses of its machine: a row each, columns only for what is known.
import { h } from './dom.js';
import { NONE, number, resource } from './format.js';

const bytes = (value) => resource('memory', value);
const COLUMNS = [
    ['Processors', 'cpus', number],
    ['Memory', 'memoryBytes', bytes],
    ['GPUs', 'gpus', number],
    ['GPU memory', 'gpuMemoryBytes', bytes],
];

const cell = (name, value, kind = 'number') =>
    h('td', { role: 'cell', 'data-label': name, class: kind }, value);

// The contents of a <table>; null when nothing is known.
export function useTable(job) {
    const uses = job.use ?? [];
    if (!uses.length) return null;
    const columns = COLUMNS.filter(
        ([, key]) => key === 'cpus' || uses.some((use) => use[key] !== undefined),
    );
    const heads = ['Rank', 'Node', ...columns.map(([name]) => name)];
    const rows = uses.map((use) =>
        h(
            'tr',
            { role: 'row', 'data-key': use.rank },
            cell('Rank', use.rank),
            cell('Node', job.allocation?.[use.rank] ?? NONE, null),
            columns.map(([name, key, show]) => cell(name, show(use[key]))),
        ),
    );
    const head = (name) =>
        h(
            'th',
            { scope: 'col', role: 'columnheader', class: name === 'Node' ? null : 'number' },
            name,
        );
    return [
        h('thead', { role: 'rowgroup' }, h('tr', { role: 'row' }, heads.map(head))),
        h('tbody', { role: 'rowgroup' }, rows),
    ];
}
