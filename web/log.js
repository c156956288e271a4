// The output of one replica, followed while it grows. The text is untrusted and may be endless: it goes
// into text nodes only, and only the end of it is kept.
import { ApiError, jobPath, text } from './api.js';

const KEEP_CHARACTERS = 200000;
const TAIL_LINES = 500;
const RETRY_MS = 1500;

// Colours and cursor movements of terminals: ESC [ ... letter, and other escapes.
const ESCAPES = /\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]/g;

export class LogView {
    constructor(output, note) {
        this.output = output;
        this.note = note;
        this.abort = null;
    }

    // group null: across restarts, from the newest lines on.
    open(job, rank, group, follow) {
        this.close();
        this.abort = new AbortController();
        this.output.replaceChildren();
        this.length = 0;
        this.read(job, rank, group, follow, this.abort.signal);
    }

    close() {
        this.abort?.abort();
    }

    async read(job, rank, group, follow, signal) {
        const query = new URLSearchParams({ rank, tail: TAIL_LINES });
        if (group !== null)
            query.set('group', group);
        if (follow)
            query.set('follow', 1);
        this.note.textContent = 'loading';
        for (;;) {
            try {
                const started = this.note.textContent;
                await text(`${jobPath(job, '/logs')}?${query}`, {
                    signal,
                    take: (chunk) => {
                        if (started !== 'following') {
                            this.note.textContent = follow ? 'following' : '';
                        }
                        this.append(chunk);
                    },
                });
                this.note.textContent = this.length ? 'end of the log' : 'nothing was printed';
                return;
            } catch (error) {
                if (signal.aborted)
                    return;
                if (error instanceof ApiError && error.status !== 404) {
                    this.note.textContent = error.message;
                    return;
                }
                // Not started yet, or the daemon is being restarted: what comes next is read afresh.
                this.note.textContent = error instanceof ApiError ? 'no output yet' : 'reconnecting';
            }
            await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
            if (signal.aborted)
                return;
            this.output.replaceChildren();
            this.length = 0;
        }
    }

    append(chunk) {
        const { output } = this;
        const atEnd = output.scrollHeight - output.scrollTop - output.clientHeight < 24;
        const clean = chunk.replace(ESCAPES, '').replace(/\r\n/g, '\n').replace(/^.*\r(?!\n)/gm, '');
        output.append(document.createTextNode(clean));
        this.length += clean.length;
        while (this.length > KEEP_CHARACTERS && output.childNodes.length > 1) {
            this.length -= output.firstChild.data.length;
            output.firstChild.remove();
        }
        if (atEnd)
            output.scrollTop = output.scrollHeight;
    }
}
