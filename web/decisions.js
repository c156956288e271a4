// The decision log: what each round did with a job, and why, in words.
import { h } from './dom.js';
import { NONE, clock, dateTime, factor, places } from './format.js';

const same = (a, b) => a.length === b.length && [...a].sort().join() === [...b].sort().join();

export const changed = (decision) => !same(decision.before ?? [], decision.after ?? []);

function change(decision) {
    const [before, after] = [decision.before ?? [], decision.after ?? []];
    if (!changed(decision)) return h('span', { class: 'muted' }, places(after));
    return [h('span', { class: 'muted' }, places(before)), ' → ', h('strong', null, places(after))];
}

// The contents of a <table>. withJob: a column for it.
export function decisionsTable(decisions, withJob) {
    const columns = ['Time', 'Round', withJob && 'Job', 'Replicas on', 'Speedup', 'Why'].filter(
        Boolean,
    );
    const rows = decisions.map((decision) =>
        h(
            'tr',
            { role: 'row', 'data-key': `${decision.round} ${decision.job} ${decision.time}` },
            h(
                'td',
                { role: 'cell', 'data-label': 'Time', title: dateTime(decision.time) },
                clock(decision.time),
            ),
            h('td', { role: 'cell', 'data-label': 'Round', class: 'number' }, decision.round),
            withJob &&
                h(
                    'td',
                    { role: 'cell', 'data-label': 'Job' },
                    h(
                        'a',
                        { href: `#job=${decision.job}` },
                        decision.job.replace(/^default\//, ''),
                    ),
                ),
            h('td', { role: 'cell', 'data-label': 'Replicas on' }, change(decision)),
            h(
                'td',
                { role: 'cell', 'data-label': 'Speedup', class: 'number' },
                decision.after?.length ? factor(decision.speedup) : NONE,
            ),
            h(
                'td',
                { role: 'cell', 'data-label': 'Why', class: 'words' },
                decision.reason ? h('span', { class: 'badge' }, decision.reason) : null,
                ' ',
                decision.text ?? '',
            ),
        ),
    );
    return [
        h(
            'thead',
            { role: 'rowgroup' },
            h(
                'tr',
                { role: 'row' },
                columns.map((name) =>
                    h(
                        'th',
                        {
                            scope: 'col',
                            role: 'columnheader',
                            class: name === 'Round' || name === 'Speedup' ? 'number' : null,
                        },
                        name,
                    ),
                ),
            ),
        ),
        h('tbody', { role: 'rowgroup' }, rows),
    ];
}
