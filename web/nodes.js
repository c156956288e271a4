// The cluster as it stands: a card for each node, a cell for each slot, coloured by job.
import { h } from './dom.js';
import { plural, resource } from './format.js';
import { lookOf } from './looks.js';

// By the number of slots: two a row, as many as fit, or so many that cells show the rank alone.
const PAIRS_TO = 4;
const COMPACT_FROM = 9;
const positions = new Map(); // node -> [slot] of "job rank"
let tabStop = null; // place of the cell that the Tab key reaches

// A replica stays in its cell while it lives, so that the eye can follow it.
function arrange(node) {
    const keys = new Map(
        node.replicas.map((replica) => [`${replica.job} ${replica.rank}`, replica]),
    );
    const count = Math.max(node.slots, node.replicas.length);
    const cells = (positions.get(node.name) ?? [])
        .map((key) => (keys.has(key) ? key : null))
        .slice(0, count);
    const missing = [...keys.keys()].filter((key) => !cells.includes(key));
    for (let i = 0; i < count; i++) cells[i] ??= missing.shift() ?? null;
    positions.set(node.name, cells);
    return cells.map((key) => (key === null ? null : keys.get(key)));
}

// For those who listen.
const hidden = (text) => h('span', { class: 'hidden' }, text);

const shortName = (job) => job.replace(/^default\//, '');

function cell(node, replica, slot, job, compact) {
    if (!replica) {
        return h('li', { class: 'slot free', 'data-key': slot }, hidden(`slot ${slot}: free`));
    }
    const starting = job && job.phase !== 'Running';
    const state = starting ? `, ${job.phase.toLowerCase()}` : '';
    const tip = `${replica.job} · rank ${replica.rank} · group ${replica.group}${state}`;
    return h(
        'li',
        { class: 'slot', 'data-key': slot },
        h(
            'a',
            {
                href: `#job=${replica.job}`,
                class: `cell ${lookOf(job?.uid)}${starting ? ' waiting' : ''}`,
                'data-tip': tip,
                'data-job': replica.job,
                'data-place': `${node.name} ${slot}`,
                tabindex: -1,
            },
            hidden(`slot ${slot}: `),
            h('span', { class: compact ? 'hidden' : 'cell-name' }, shortName(replica.job)),
            hidden(', rank '),
            h('span', { class: 'cell-rank' }, replica.rank),
            hidden(state),
        ),
    );
}

function badges(node) {
    const list = [];
    if (!node.ready) list.push(h('span', { class: 'badge bad' }, 'lost'));
    if (node.draining) list.push(h('span', { class: 'badge warn' }, 'draining'));
    if (node.preemptible) list.push(h('span', { class: 'badge' }, 'preemptible'));
    return list;
}

// "cpu 2 of 4 free, memory ..."; pods are what the cells show.
function resources(node) {
    return Object.keys(node.resources)
        .filter((name) => name !== 'pods')
        .map(
            (name) =>
                `${name} ${resource(name, node.free[name])}/${resource(name, node.resources[name])}`,
        )
        .join(' · ');
}

function card(node, jobs) {
    const slots = arrange(node);
    const compact = slots.length >= COMPACT_FROM;
    const verb = node.draining ? 'undrain' : 'drain';
    const free = resources(node);
    const state = [!node.ready && 'lost', node.draining && 'draining'].filter(Boolean).join(' ');
    return h(
        'li',
        { class: `node ${state}`, 'data-key': node.name },
        h(
            'div',
            { class: 'node-head' },
            h('h3', null, node.name),
            badges(node),
            h('span', { class: 'muted small' }, node.deviceType || null),
            h(
                'button',
                {
                    type: 'button',
                    class: 'quiet',
                    'data-act': verb,
                    'data-node': node.name,
                    'aria-label': `${verb === 'drain' ? 'Drain' : 'Undrain'} ${node.name}`,
                },
                verb === 'drain' ? 'Drain' : 'Undrain',
            ),
        ),
        h(
            'ul',
            {
                class: `slots ${compact ? 'compact' : slots.length <= PAIRS_TO ? 'pairs' : ''}`,
                'aria-label': `slots of ${node.name}`,
            },
            slots.map((replica, i) => cell(node, replica, i, jobs.get(replica?.job), compact)),
        ),
        free && h('p', { class: 'muted small', title: 'free / all' }, `free ${free}`),
    );
}

export function nodesView(cluster, jobs) {
    if (!cluster.nodes.length) return [h('li', { class: 'muted' }, 'There are no nodes.')];
    return cluster.nodes.map((node) => card(node, jobs));
}

export function nodesSummary(cluster) {
    const slots = cluster.nodes.reduce(
        (sum, node) => sum + Math.max(node.slots, node.replicas.length),
        0,
    );
    const used = cluster.nodes.reduce((sum, node) => sum + node.replicas.length, 0);
    return `${plural(cluster.nodes.length, 'node')}, ${used} of ${plural(slots, 'slot')} in use`;
}

// One stop of the Tab key for all cells; the arrow keys move between them.
export function keepOneTabStop(container) {
    const cells = [...container.querySelectorAll('a.cell')];
    const stop = cells.find((each) => each.dataset.place === tabStop) ?? cells[0];
    stop?.setAttribute('tabindex', 0);
}

// The cell nearest in the direction of the key.
export function moveFocus(container, key) {
    const from = document.activeElement;
    const cells = [...container.querySelectorAll('a.cell')];
    const at = cells.indexOf(from);
    if (at < 0) return false;
    let next = null;
    if (key === 'Home' || key === 'End') {
        next = cells.at(key === 'Home' ? 0 : -1);
    } else if (key === 'ArrowLeft' || key === 'ArrowRight') {
        next = cells[at + (key === 'ArrowRight' ? 1 : -1)];
    } else if (key === 'ArrowUp' || key === 'ArrowDown') {
        const sign = key === 'ArrowDown' ? 1 : -1;
        const box = from.getBoundingClientRect();
        const far = (other) => {
            const { left, top } = other.getBoundingClientRect();
            const down = sign * (top - box.top);
            return down < 4 ? Infinity : 4 * down + Math.abs(left - box.left);
        };
        next = cells.filter((each) => far(each) < Infinity).sort((a, b) => far(a) - far(b))[0];
    } else {
        return false;
    }
    if (next) {
        tabStop = next.dataset.place;
        from.tabIndex = -1;
        next.tabIndex = 0;
        next.focus();
    }
    return true;
}
