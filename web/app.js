// The dashboard: state, what is shown of it, and what buttons do.
import { ApiError, jobPath, nodePath, post, remove, token } from './api.js';
import { changed, decisionsTable } from './decisions.js';
import { byId, h, setText, show } from './dom.js';
import { diskText, duration, plural } from './format.js';
import { JobView } from './job.js';
import { ACTIVE, FINISHED, ROWS_MAX, filterJobs, idOf, isOver, jobsTable } from './jobs.js';
import { Live } from './live.js';
import { assignLooks } from './looks.js';
import { keepOneTabStop, moveFocus, nodesSummary, nodesView } from './nodes.js';

const DECISIONS_SHOWN = 40;
const HIDDEN_PAUSE_MS = 30000;
const STATES = {
    connecting: 'connecting',
    live: 'live',
    polling: 'polling',
    reconnecting: 'reconnecting',
    token: 'token needed',
    paused: 'paused',
};
// Events worth interrupting somebody for who cannot see the page.
const SPOKEN = new Set([
    'JobCreated',
    'JobPhase',
    'JobRescaled',
    'JobPinned',
    'JobDeleted',
    'ReplicaFailed',
    'ReplicaLost',
    'NodeDrained',
    'NodeUndrained',
    'NodeLost',
    'NodeReady',
    'ClusterDrained',
    'ClusterUndrained',
]);

const state = {
    cluster: null,
    jobs: new Map(),
    decisions: [],
    clockOffset: 0,
    sort: {
        active: { column: 'Age', descending: true },
        finished: { column: 'Finished', descending: true },
    },
};
const jobView = new JobView();
const live = new Live({ onData, onEvent, onState, askToken });

// Seconds since 1970 by the server's clock.
const now = () => Date.now() / 1000 + state.clockOffset;

// ---- what the server says ----

function onData({ cluster, jobs, decisions }) {
    if (state.cluster && state.cluster.version !== cluster.version)
        warn('The server was updated: reload the page to get the dashboard that belongs to it.');
    state.cluster = cluster;
    state.clockOffset = cluster.now - Date.now() / 1000;
    state.jobs = new Map(jobs.map((job) => [idOf(job), job]));
    state.decisions = decisions;
    assignLooks(jobs);
    byId('forget').hidden = !token.get();
    render();
}

function onEvent(event) {
    if (SPOKEN.has(event.type))
        announce([event.job, event.message ?? event.type].filter(Boolean).join(': '));
}

function onState(name) {
    document.body.dataset.connection = name;
    setText(byId('connection'), STATES[name]);
}

// The last few changes, for screen readers.
function announce(text) {
    const news = byId('news');
    news.append(h('p', null, text));
    while (news.childNodes.length > 5) news.firstChild.remove();
}

// ---- what is shown ----

function render() {
    if (!state.cluster) return;
    renderHeader();
    if (jobView.id === null) renderCluster();
    else jobView.update(state.jobs, now());
}

function renderHeader() {
    const { cluster } = state;
    setText(byId('version'), cluster.version);
    const next = cluster.nextRound === null ? null : cluster.nextRound - now();
    const phases = Object.entries(cluster.jobs).filter(
        ([phase, count]) => count > 0 || phase === 'Running',
    );
    const fact = (name, value) =>
        h('div', { 'data-key': name }, h('dt', null, name), h('dd', null, value));
    show(
        byId('facts'),
        fact('policy', cluster.policy),
        fact('round', cluster.round),
        next !== null && fact('next round', next > 0 ? `in ${duration(next)}` : 'now'),
        phases.map(([phase, count]) => fact(phase.toLowerCase(), count)),
        cluster.disk.state !== 'ok' && fact('disk', diskText(cluster.disk)),
    );
}

function renderCluster() {
    const { cluster } = state;
    const all = [...state.jobs.values()];
    const jobs = filterJobs(all, byId('filter').value);
    const active = jobs.filter((job) => !isOver(job));
    const finished = jobs.filter(isOver);
    setText(byId('nodes-summary'), nodesSummary(cluster));
    show(byId('nodes'), nodesView(cluster, state.jobs));
    keepOneTabStop(byId('nodes'));
    const pointed = byId('nodes').querySelector('a.cell:hover, a.cell:focus');
    if (pointed) showTip(pointed);
    else hideTip();
    setText(
        byId('jobs-summary'),
        (jobs.length < all.length ? `${jobs.length} of ` : '') + counted(all),
    );
    renderJobs('active', ACTIVE, active);
    renderJobs('finished', FINISHED, finished);
    setText(
        byId('active-empty'),
        all.length
            ? 'No such job is waiting or running.'
            : 'No jobs yet. Submit one: adaptdl submit DIRECTORY',
    );
    byId('active-empty').hidden = active.length > 0;
    byId('finished-box').hidden = !finished.length;
    setText(byId('finished-summary'), counted(finished));
    renderDecisions();
}

function counted(jobs) {
    const more = jobs.length > ROWS_MAX ? `, ${ROWS_MAX} shown` : '';
    return plural(jobs.length, 'job') + more;
}

function renderJobs(id, columns, jobs) {
    byId(id).hidden = !jobs.length;
    show(byId(id), jobsTable(id, columns, jobs, state.sort[id], now()));
}

function renderDecisions() {
    const only = byId('changes').checked;
    const decisions = state.decisions
        .filter((each) => !only || changed(each))
        .slice(0, DECISIONS_SHOWN);
    byId('decisions').hidden = !decisions.length;
    byId('decisions-empty').hidden = decisions.length > 0;
    setText(
        byId('decisions-empty'),
        only ? 'No allocation was changed lately.' : 'No round has decided anything yet.',
    );
    show(byId('decisions'), decisionsTable(decisions, true));
}

// Countdown and ages go on between two updates.
function tick() {
    if (!state.cluster || document.hidden) return;
    renderHeader();
    if (jobView.id !== null) jobView.tick(now());
}

// ---- where we are: #job=ns/name, or the cluster ----

// A link may bring the token: it is kept as if it had been typed, and leaves the address at once. What
// follows # is never sent to a server.
function takeTokenFromAddress() {
    const match = /^#token=([^&]+)$/.exec(location.hash);
    if (!match) return;
    token.set(decodeURIComponent(match[1]));
    history.replaceState(null, '', location.pathname);
}

function route({ focus = true } = {}) {
    const match = /^#job=([^/]+\/[^/]+)$/.exec(location.hash);
    let id = null;
    try {
        id = match && decodeURIComponent(match[1]);
    } catch {
        // Not a name that we made.
    }
    hideTip();
    byId('cluster-view').hidden = id !== null;
    byId('job-view').hidden = id === null;
    document.title = id === null ? 'AdaptDL' : `${id} · AdaptDL`;
    if (id === null) jobView.close();
    else jobView.open(id);
    render();
    if (!focus) return;
    window.scrollTo(0, 0);
    (id === null ? byId('main') : byId('job-title')).focus({ preventScroll: true });
}

// ---- buttons ----

function warn(message) {
    byId('alert').firstElementChild.textContent = message;
    byId('alert').hidden = false;
}

async function confirmed(title, text, yes) {
    const dialog = byId('confirm');
    byId('confirm-title').textContent = title;
    byId('confirm-text').textContent = text;
    byId('confirm-yes').textContent = yes;
    dialog.returnValue = 'no';
    dialog.showModal();
    await new Promise((resolve) => dialog.addEventListener('close', resolve, { once: true }));
    return dialog.returnValue === 'yes';
}

// True when it worked; otherwise says what went wrong.
async function attempt(call) {
    try {
        await call();
        return true;
    } catch (error) {
        warn(error instanceof ApiError ? error.message : 'The server cannot be reached.');
        return false;
    } finally {
        live.touch();
    }
}

const actions = {
    async delete({ job }) {
        const over = isOver(state.jobs.get(job) ?? {});
        const text = over
            ? 'Its logs, checkpoints and files are removed.'
            : 'Its replicas are stopped, and its logs, checkpoints and files are removed.';
        if (!(await confirmed(`Delete ${job}?`, text, 'Delete'))) return;
        if ((await attempt(() => remove(jobPath(job)))) && jobView.id === job) location.hash = '';
    },
    async drain({ node }) {
        const text =
            'Jobs there save a checkpoint and go elsewhere; nothing starts there until it is undrained.';
        if (await confirmed(`Drain ${node}?`, text, 'Drain'))
            await attempt(() => post(nodePath(node, 'drain')));
    },
    undrain: ({ node }) => attempt(() => post(nodePath(node, 'undrain'))),
    sort({ table, column }) {
        const before = state.sort[table];
        const descending = before.column === column && !before.descending;
        state.sort[table] = { column, descending };
        renderCluster();
    },
    dismiss() {
        byId('alert').hidden = true;
    },
};

let asking = null;

// Resolves when a token was given. One dialog, however many ask.
function askToken() {
    const dialog = byId('token-dialog');
    asking ??= new Promise((resolve) => {
        setText(
            byId('token-text'),
            token.get() ? 'The server did not accept this token.' : 'This server asks for a token.',
        );
        byId('token').value = '';
        dialog.showModal();
        dialog.addEventListener(
            'close',
            () => {
                token.set(byId('token').value.trim());
                byId('token').value = '';
                asking = null;
                resolve();
            },
            { once: true },
        );
    });
    return asking;
}

// ---- the cells' tooltip ----

function showTip(cell) {
    const tip = byId('tip');
    const box = cell.getBoundingClientRect();
    setText(tip, cell.dataset.tip);
    tip.hidden = false;
    const room = document.documentElement.clientWidth - tip.offsetWidth - 4;
    tip.style.left = `${Math.max(4, Math.min(box.left, room))}px`;
    tip.style.top = `${box.bottom + 6}px`;
    for (const other of document.querySelectorAll('a.cell'))
        other.classList.toggle('related', other.dataset.job === cell.dataset.job);
}

function hideTip() {
    byId('tip').hidden = true;
    document.querySelectorAll('a.cell.related').forEach((each) => each.classList.remove('related'));
}

// ---- start ----

function listen() {
    document.addEventListener('click', (event) => {
        const target = event.target.closest('[data-act]');
        if (target) actions[target.dataset.act](target.dataset);
    });
    const nodes = byId('nodes');
    for (const [type, each] of [
        ['mouseover', showTip],
        ['focusin', showTip],
        ['mouseout', hideTip],
        ['focusout', hideTip],
    ]) {
        nodes.addEventListener(type, (event) => {
            const cell = event.target.closest('a.cell');
            if (cell) each(cell);
        });
    }
    nodes.addEventListener('keydown', (event) => {
        if (moveFocus(nodes, event.key)) event.preventDefault();
    });
    document.addEventListener('keydown', (event) => {
        if (event.key === 'Escape') hideTip();
    });
    document.querySelector('.skip').addEventListener('click', (event) => {
        event.preventDefault(); // the address says which job is shown
        byId('main').focus();
    });
    byId('token-dialog').addEventListener('cancel', (event) => event.preventDefault());
    byId('filter').addEventListener('input', renderCluster);
    byId('changes').addEventListener('change', renderDecisions);
    byId('forget').addEventListener('click', () => {
        token.forget();
        location.reload();
    });
    window.addEventListener('hashchange', () => route());
}

function listenTheme() {
    const select = byId('theme');
    select.value = document.documentElement.dataset.theme;
    select.addEventListener('change', () => {
        document.documentElement.dataset.theme = select.value;
        try {
            localStorage.setItem('adaptdl-theme', select.value);
        } catch {
            // Then it lasts as long as the page.
        }
    });
}

function listenVisibility() {
    let timer = null;
    document.addEventListener('visibilitychange', () => {
        clearTimeout(timer);
        if (document.hidden) {
            timer = setTimeout(() => {
                live.pause();
                jobView.log.close();
            }, HIDDEN_PAUSE_MS);
        } else if (live.paused) {
            live.unpause();
            if (jobView.id !== null) jobView.openLog();
        }
    });
}

listen();
listenTheme();
listenVisibility();
takeTokenFromAddress();
route({ focus: false });
setInterval(tick, 1000);
live.run();
