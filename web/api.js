// Talks to the daemon: requests with the token, server-sent events, text that keeps coming. EventSource
// cannot send a header, hence our own reader of event streams over fetch.

const ROOT = new URL('..', import.meta.url);
const KEY = 'adaptdl-token';

export class ApiError extends Error {
    constructor(status, message) {
        super(message);
        this.status = status;
    }
}

// The token lives as long as the tab, never longer.
export const token = {
    get: () => sessionStorage.getItem(KEY),
    set: (value) => sessionStorage.setItem(KEY, value),
    forget: () => sessionStorage.removeItem(KEY),
};

async function open(
    path,
    { method = 'GET', accept = 'application/json', headers = {}, signal } = {},
) {
    const sent = { Accept: accept, ...headers };
    if (token.get()) sent.Authorization = `Bearer ${token.get()}`;
    const response = await fetch(new URL(path, ROOT), {
        method,
        headers: sent,
        signal,
        cache: 'no-cache', // what may be kept is asked for with its tag
        credentials: 'omit',
        redirect: 'error',
    });
    if (!response.ok) throw new ApiError(response.status, await errorText(response));
    return response;
}

async function errorText(response) {
    try {
        return (await response.json()).error.message;
    } catch {
        return `the server answered ${response.status}`;
    }
}

// An answer that takes longer than this counts as a lost connection.
const TIMEOUT_MS = 15000;

export async function get(path) {
    return (await open(path, { signal: AbortSignal.timeout(TIMEOUT_MS) })).json();
}
export const post = async (path) => (await open(path, { method: 'POST' })).json();
export const remove = async (path) => (await open(path, { method: 'DELETE' })).json();

// "ns/name" -> the path of that job.
export function jobPath(job, rest = '') {
    return `api/v1/jobs/${job.split('/').map(encodeURIComponent).join('/')}${rest}`;
}

export const nodePath = (node, verb) => `api/v1/nodes/${encodeURIComponent(node)}/${verb}`;

// Calls take(text) for each piece of the answer as it comes; returns at its end.
export async function text(path, { signal, opened, take }) {
    const response = await open(path, { accept: 'text/plain', signal });
    opened();
    await readText(response, take);
}

async function readText(response, take) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        take(value);
    }
}

// A reader of text/event-stream (WHATWG HTML, 9.2.6): feed it text in any pieces, it calls take with
// {id, type, data} for each whole event.
export function eventParser(take) {
    let rest = '';
    let event = { id: null, type: 'message', data: [] };
    const line = (text) => {
        if (text === '') {
            if (event.data.length)
                take({ id: event.id, type: event.type, data: event.data.join('\n') });
            event = { id: event.id, type: 'message', data: [] };
            return;
        }
        const colon = text.indexOf(':');
        if (colon === 0) return;
        const field = colon < 0 ? text : text.slice(0, colon);
        const value = colon < 0 ? '' : text.slice(colon + 1).replace(/^ /, '');
        if (field === 'data') event.data.push(value);
        else if (field === 'event') event.type = value;
        else if (field === 'id') event.id = value;
    };
    return (chunk) => {
        const lines = (rest + chunk).split(/\r\n|\n|\r(?!$)/);
        rest = lines.pop();
        lines.forEach(line);
    };
}

// Follows the cluster's events after `since`; take gets each Event. Returns at the end of the stream,
// false at once when the server (or something before it) does not stream.
export async function events(since, { signal, take, opened }) {
    const response = await open(`api/v1/events?since=${since}`, {
        accept: 'text/event-stream',
        headers: { 'Last-Event-ID': String(since) },
        signal,
    });
    if (!response.headers.get('Content-Type')?.startsWith('text/event-stream')) {
        await response.body?.cancel();
        return false;
    }
    opened();
    await readText(
        response,
        eventParser(({ data }) => take(JSON.parse(data))),
    );
    return true;
}
