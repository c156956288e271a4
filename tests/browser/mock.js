// A server with the API's shapes and a state that a test sets by hand: for what a real cluster cannot be
// made to show on demand (hundreds of slots, a proxy that does not stream, hostile text, a new version).
import { readFile } from 'node:fs/promises';
import http from 'node:http';

const TYPES = { html: 'text/html', css: 'text/css', js: 'text/javascript', svg: 'image/svg+xml' };
const CSP =
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'";
const now = () => Date.now() / 1000;

export function makeJob(name, fields = {}) {
    const replicas = fields.allocation?.length ?? 0;
    return {
        namespace: 'default',
        name,
        uid: `uid-${name}`,
        phase: replicas ? 'Running' : 'Pending',
        reason: null,
        message: null,
        created: now() - 300,
        started: now() - 290,
        completed: null,
        replicas,
        readyReplicas: replicas,
        group: 1,
        restarts: 0,
        failures: 0,
        allocation: [],
        minReplicas: 0,
        maxReplicas: null,
        preemptible: true,
        resources: { pods: 1 },
        command: ['mnist', '--epochs', '3'],
        train: replicas
            ? {
                  batchSize: 256,
                  initBatchSize: 64,
                  maxBatchSize: 1024,
                  throughput: 5310.2,
                  efficiency: 0.83,
                  goodput: 4407.5,
                  speedup: 1.74,
                  progress: 1200.5,
                  totalProgress: 4000,
                  epoch: 3,
                  targetEpochs: 10,
                  fractionDone: 0.3,
                  estimatedFinish: now() + 700,
                  maxProfiledReplicas: 2,
              }
            : null,
        deviceSeconds: 120.5,
        deleted: false,
        ...fields,
    };
}

export class Mock {
    constructor({ nodes = 2, slots = 2, stream = true } = {}) {
        Object.assign(this, {
            stream,
            version: '0.1.0',
            jobs: [],
            decisions: [],
            log: 'hello\n',
            events: [],
            samples: [],
            requests: [],
            logs: [],
            token: null,
        });
        this.nodes = Array.from({ length: nodes }, (_, i) => ({
            name: `node-${i}`,
            ready: true,
            draining: false,
            preemptible: false,
            deviceType: '',
            resources: { pods: slots },
            slots,
        }));
        this.streams = new Set();
        this.server = http.createServer((request, response) => this.answer(request, response));
    }

    async start(port = 0) {
        await new Promise((resolve) => this.server.listen(port, '127.0.0.1', resolve));
        this.port = this.server.address().port;
        this.url = `http://127.0.0.1:${this.port}/`;
        return this;
    }

    stop() {
        this.server.closeAllConnections();
        this.server.close();
    }

    // As a daemon does that is stopped in peace.
    endLogs() {
        this.logs.splice(0).forEach((response) => response.end());
    }

    event(type, job, message) {
        const event = { seq: this.events.length + 1, time: now(), type, job, message };
        this.events.push(event);
        for (const response of this.streams)
            response.write(`id: ${event.seq}\nevent: ${type}\ndata: ${JSON.stringify(event)}\n\n`);
    }

    nodeViews() {
        return this.nodes.map((node) => {
            const replicas = this.jobs.flatMap((job) =>
                job.allocation.flatMap((place, rank) =>
                    place === node.name
                        ? [{ job: `${job.namespace}/${job.name}`, rank, group: job.group }]
                        : [],
                ),
            );
            return { ...node, replicas, free: { pods: node.slots - replicas.length } };
        });
    }

    cluster() {
        const jobs = { Pending: 0, Starting: 0, Running: 0, Stopping: 0, Succeeded: 0, Failed: 0 };
        this.jobs.forEach((job) => {
            jobs[job.phase]++;
        });
        return {
            version: this.version,
            policy: 'rank',
            intervalSeconds: 60,
            started: now() - 600,
            now: now(),
            round: 12,
            lastRound: now() - 20,
            nextRound: now() + 40,
            nodes: this.nodeViews(),
            jobs,
            dashboard: null,
            disk: this.disk ?? { state: 'ok', freeBytes: 1e12, sizeBytes: 2e12 },
            lastEvent: this.events.length,
        };
    }

    async answer(request, response) {
        const url = new URL(request.url, this.url);
        this.requests.push(`${request.method} ${url.pathname}`);
        const json = (body, status = 200) => {
            response.writeHead(status, { 'Content-Type': 'application/json' });
            response.end(JSON.stringify(body));
        };
        const job = this.jobs.find((each) =>
            url.pathname.startsWith(`/api/v1/jobs/${each.namespace}/${each.name}`),
        );
        if (
            this.token &&
            url.pathname.startsWith('/api/') &&
            request.headers.authorization !== `Bearer ${this.token}`
        ) {
            json({ error: { code: 401, message: 'a token is needed' } }, 401);
            return;
        }
        const paths = {
            '/api/v1/cluster': () => json(this.cluster()),
            '/api/v1/jobs': () => json({ items: this.jobs }),
            '/api/v1/decisions': () => json({ items: this.decisions }),
            '/api/v1/events': () => this.answerEvents(request, response, url, json),
        };
        if (paths[url.pathname]) paths[url.pathname]();
        else if (job) this.answerJob(job, url.pathname.split('/')[6], json, response);
        else if (!url.pathname.startsWith('/api/')) await this.answerFile(url.pathname, response);
        else json({ error: { code: 404, message: `no such thing: ${url.pathname}` } }, 404);
    }

    answerJob(job, what, json, response) {
        if (what === 'history') {
            json({ samples: this.samples });
        } else if (what === 'metrics') {
            json({ items: this.curves ?? [] });
        } else if (what === 'decisions') {
            json({ items: this.decisions });
        } else if (what === 'logs') {
            response.writeHead(200, { 'Content-Type': 'text/plain' });
            response.write(this.log);
            this.logs.push(response);
        } else {
            json(job);
        }
    }

    answerEvents(request, response, url, json) {
        const since = Number(url.searchParams.get('since') ?? 0);
        const items = this.events.filter((event) => event.seq > since);
        if (!this.stream || request.headers.accept !== 'text/event-stream') {
            json({ items, last: this.events.length });
            return;
        }
        response.writeHead(200, { 'Content-Type': 'text/event-stream' });
        response.flushHeaders();
        this.streams.add(response);
        response.on('close', () => this.streams.delete(response));
    }

    async answerFile(path, response) {
        const name = path === '/' ? 'index.html' : path.replace(/^\/dashboard\//, '');
        try {
            const body = await readFile(new URL(`../../web/${name}`, import.meta.url));
            response.writeHead(200, {
                'Content-Type': TYPES[name.split('.').pop()],
                'Content-Security-Policy': CSP,
                'X-Content-Type-Options': 'nosniff',
            });
            response.end(body);
        } catch {
            response.writeHead(404).end();
        }
    }
}
