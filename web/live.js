// Keeps the page's picture of the cluster up to date, whatever happens to the daemon or the network.
// Events say that something changed; what is shown is then fetched, at most a few times a second, so a
// missed event costs nothing but time. States: connecting, live (event stream), polling (no stream to be
// had), reconnecting, token (the server wants one), paused (nobody looks).
import { ApiError, events, get } from './api.js';

const GAP_MS = 400; // between two fetches
const PAGE_JOBS = 1000;
const CHECK_MS = 5000; // even when no event comes
const POLL_MS = 3000;
const POLLS_BEFORE_STREAM = 10;
const RETRY_MS = [300, 600, 1000, 2000, 4000];

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

export class Live {
    // onData({cluster, jobs, decisions}), onEvent(event), onState(state), askToken(wrong) -> promise.
    constructor(handlers) {
        this.handlers = handlers;
        this.state = 'connecting';
        this.last = 0;
        this.wanted = false;
        this.abort = null;
        this.resume = null;
    }

    setState(state) {
        if (state === this.state) return;
        this.state = state;
        this.handlers.onState(state);
    }

    // Something changed or may have: fetch soon.
    touch() {
        this.wanted = true;
        this.wake?.();
    }

    // A hidden tab holds no connection: browsers allow only six to one server.
    pause() {
        this.paused = true;
        this.abort?.abort();
    }

    unpause() {
        this.paused = false;
        this.resume?.();
    }

    async run() {
        let failures = 0;
        for (;;) {
            if (this.paused) {
                this.setState('paused');
                await new Promise((resolve) => {
                    this.resume = resolve;
                });
            }
            try {
                await this.fetch();
                failures = 0;
                await this.follow();
            } catch (error) {
                if (error instanceof ApiError && error.status === 401) {
                    this.setState('token');
                    await this.handlers.askToken();
                    continue;
                }
            }
            if (this.paused) continue;
            this.setState('reconnecting');
            const pause = RETRY_MS[Math.min(failures++, RETRY_MS.length - 1)];
            await sleep(pause * (0.75 + Math.random() / 2));
        }
    }

    async fetch() {
        this.wanted = false;
        const [cluster, jobs, decisions] = await Promise.all([
            get('api/v1/cluster'),
            this.jobs(),
            get('api/v1/decisions?limit=200'),
        ]);
        // The first picture includes all events so far; a store that was replaced counts from the start.
        if (!this.last || cluster.lastEvent < this.last) this.last = cluster.lastEvent;
        this.handlers.onData({ cluster, jobs, decisions: decisions.items });
    }

    // Page by page; a page that did not change comes from the browser's cache (304). 410: another scheduler by now.
    async jobs() {
        for (let items = [], from = ''; ; ) {
            try {
                const page = await get(`api/v1/jobs?limit=${PAGE_JOBS}${from}`);
                items = items.concat(page.items);
                if (!page.continue) return items;
                from = `&continue=${encodeURIComponent(page.continue)}`;
            } catch (error) {
                if (!from || !(error instanceof ApiError) || error.status !== 410) throw error;
                items = [];
                from = '';
            }
        }
    }

    // Until the connection is lost (throws or returns).
    async follow() {
        this.abort = new AbortController();
        try {
            const stream = events(this.last, {
                signal: this.abort.signal,
                opened: () => this.setState('live'),
                take: (event) => this.take(event),
            });
            const streamed = await Promise.race([
                stream,
                this.refresh(this.abort.signal, CHECK_MS),
            ]);
            if (streamed === false) {
                this.setState('polling');
                await this.refresh(this.abort.signal, POLL_MS, POLLS_BEFORE_STREAM);
            }
        } finally {
            this.abort.abort();
        }
    }

    take(event) {
        this.last = Math.max(this.last, event.seq);
        this.handlers.onEvent(event);
        this.touch();
    }

    // Fetches when touched, or when nothing was fetched for `every`. Throws when a fetch fails.
    async refresh(signal, every, times = Infinity) {
        for (let i = 0; i < times && !signal.aborted; i++) {
            if (!this.wanted) {
                const woken = new Promise((resolve) => {
                    this.wake = resolve;
                });
                await Promise.race([sleep(every), woken]);
            }
            if (signal.aborted) return;
            const began = performance.now();
            await this.fetch();
            // A slow server is asked less often.
            await sleep(Math.max(GAP_MS, 3 * (performance.now() - began)));
        }
    }
}
