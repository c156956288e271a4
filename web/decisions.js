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

// Rounds that left a job as it was say the same again and again: those that follow each other become one, the newest,
// with the number of rounds.
function fold(decisions) {
    const folded = [];
    for (const decision of decisions) {
        const last = folded.at(-1);
        if (last && !changed(last) && !changed(decision) && same(last.after, decision.after))
            last.rounds += 1;
        else folded.push({ ...decision, rounds: 1 });
    }
    return folded;
}

// The contents of a <table>. withJob: a column for it. folded: rounds that kept what there was are one row.
export function decisionsTable(given, withJob, folded = false) {
    const decisions = folded ? fold(given) : given;
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
                decision.rounds > 1
                    ? h('span', { class: 'muted' }, ` (as in the ${decision.rounds - 1} rounds before)`)
                    : null,
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
