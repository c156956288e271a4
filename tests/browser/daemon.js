// A real cluster for a test: adaptdl-sched on a state directory of its own, 2 nodes with 2 slots, TCP with
// a token, and elastic jobs that train.
import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import net from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { until } from './harness.js';

const BIN = process.env.ADAPTDL_BIN ?? 'build/release/bin';
const PROGRAM = path.resolve(BIN, 'adaptdl-sched');
const EXAMPLES = path.resolve(BIN, '../examples');
export const missing = [PROGRAM, `${EXAMPLES}/mnist`].filter((each) => !existsSync(each));

async function freePort() {
    const server = net.createServer();
    await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
    const { port } = server.address();
    await new Promise((resolve) => server.close(resolve));
    return port;
}

export class Cluster {
    async start() {
        this.state = await mkdtemp(path.join(tmpdir(), 'adl-'));
        this.token = 'a-token-for-the-browser-tests-0123456789';
        this.tokenFile = path.join(this.state, 'token');
        await writeFile(this.tokenFile, `${this.token}\n`, { mode: 0o600 });
        this.config = path.join(this.state, 'config.yaml');
        await writeFile(this.config, CONFIG);
        this.port = await freePort();
        this.url = `http://127.0.0.1:${this.port}/`;
        await this.run();
        return this;
    }

    // Also after kill: the same state, the same port.
    async run() {
        const flags = [
            '--config',
            this.config,
            '--state',
            this.state,
            '--nodes',
            '2',
            '--slots',
            '2',
            '--listen',
            `127.0.0.1:${this.port}`,
            '--token-file',
            this.tokenFile,
        ];
        this.output = '';
        this.daemon = spawn(PROGRAM, flags, {
            stdio: ['ignore', 'pipe', 'pipe'],
            env: { ...process.env, PATH: `${EXAMPLES}:${process.env.PATH}` },
        });
        const ended = new Promise((resolve) => this.daemon.on('exit', resolve));
        this.ended = ended;
        for (const stream of [this.daemon.stdout, this.daemon.stderr])
            stream.on('data', (data) => {
                this.output = (this.output + data).slice(-4000);
            });
        await until('the daemon answers', async () => {
            if (this.daemon.exitCode !== null) return true;
            return (await fetch(`${this.url}healthz`)).ok;
        });
        if (this.daemon.exitCode !== null)
            throw new Error(`adaptdl-sched ended with ${this.daemon.exitCode}: ${this.output}`);
    }

    // SIGKILL: the replicas go on.
    async kill() {
        this.daemon.kill('SIGKILL');
        await this.ended;
    }

    async api(method, where, body) {
        const response = await fetch(`${this.url}api/v1/${where}`, {
            method,
            body: body && JSON.stringify(body),
            headers: { Authorization: `Bearer ${this.token}`, 'Content-Type': 'application/json' },
        });
        const answer = await response.json();
        if (!response.ok)
            throw new Error(`${method} ${where}: ${response.status} ${answer.error?.message}`);
        return answer;
    }

    submit(name, command, spec = {}) {
        return this.api('POST', 'jobs', {
            apiVersion: 'adaptdl.petuum.com/v1',
            kind: 'AdaptDLJob',
            metadata: { name },
            spec: {
                template: { spec: { containers: [{ name: 'main', image: 'none', command }] } },
                ...spec,
            },
        });
    }

    // A job that trains until it is deleted or has had its epochs.
    mnist(name, { epochs = 200, examples = 6000, spec = {} } = {}) {
        const flags = `--examples ${examples} --epochs ${epochs} --threads 1 --autoscale`;
        return this.submit(name, ['mnist', ...flags.split(' ')], spec);
    }

    job(name) {
        return this.api('GET', `jobs/default/${name}`);
    }

    // Ends the jobs, then the daemon (which alone would leave them running), and removes all files.
    async stop() {
        if (this.daemon.exitCode !== null || this.daemon.signalCode !== null) await this.run();
        const jobs = async () => (await this.api('GET', 'jobs')).items;
        for (const job of await jobs())
            await this.api('DELETE', `jobs/${job.namespace}/${job.name}`);
        await until('all jobs are gone', async () => (await jobs()).length === 0, 60000);
        this.daemon.kill('SIGTERM');
        await this.ended;
        await rm(this.state, { recursive: true, force: true });
    }
}

// Rounds every few seconds, so that tests see jobs grow.
const CONFIG = `\
intervalSeconds: 5
historySeconds: 1
`;
