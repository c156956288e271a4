// The output of one replica, followed while it grows. The text is untrusted and may be endless: it goes
// into text nodes only, and only the end of it is kept.
import { ApiError, jobPath, text } from './api.js';

const KEEP_CHARACTERS = 200000;
const TAIL_LINES = 500;
const RETRY_MS = 1500;

// Colours and cursor movements of terminals: ESC [ ... letter, and other escapes.
const ESCAPES = /\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]/g;

export class LogView {
    // isOver(): nothing more will be printed.
    constructor(output, note, isOver) {
        Object.assign(this, { output, note, isOver, abort: null, length: 0 });
    }

    // group null: across restarts, from the newest lines on.
    async open(job, rank, group, follow) {
        this.close();
        this.abort = new AbortController();
        const { signal } = this.abort;
        const query = new URLSearchParams({ rank, tail: TAIL_LINES });
        if (group !== null) query.set('group', group);
        if (follow) query.set('follow', 1);
        this.note.textContent = 'loading';
        while (
            !(await this.read(
                `${jobPath(job, '/logs')}?${query}`,
                follow && group === null,
                signal,
            ))
        )
            await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }

    close() {
        this.abort?.abort();
    }

    // Reads from the start of the tail; true when there is no point in doing it again.
    async read(path, follow, signal) {
        if (signal.aborted) return true;
        this.output.replaceChildren();
        this.length = 0;
        try {
            await text(path, {
                signal,
                opened: () => {
                    this.note.textContent = follow ? 'following' : '';
                },
                take: (chunk) => this.append(chunk),
            });
        } catch (error) {
            const status = error instanceof ApiError ? error.status : 0;
            if (!signal.aborted)
                this.note.textContent =
                    { 0: 'reconnecting', 404: 'no output yet' }[status] ?? error.message;
            return signal.aborted || (status !== 0 && status !== 404);
        }
        // A daemon that is stopped ends the stream, too.
        if (follow && !this.isOver()) return false;
        this.note.textContent = this.length ? 'end of the log' : 'nothing was printed';
        return true;
    }

    append(chunk) {
        const { output } = this;
        const atEnd = output.scrollHeight - output.scrollTop - output.clientHeight < 24;
        const clean = chunk
            .replace(ESCAPES, '')
            .replace(/\r\n/g, '\n')
            .replace(/^.*\r(?!\n)/gm, '');
        output.append(document.createTextNode(clean));
        this.length += clean.length;
        while (this.length > KEEP_CHARACTERS && output.childNodes.length > 1) {
            this.length -= output.firstChild.data.length;
            output.firstChild.remove();
        }
        if (atEnd) output.scrollTop = output.scrollHeight;
    }
}
