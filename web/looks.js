// What a job looks like everywhere on the page: one of eight colours that people with colour blindness
// tell apart (Okabe and Ito, plus one), and, from the ninth job on, one of four patterns.

const COLOURS = 8;
const PATTERNS = 4;
const looks = new Map(); // uid -> number below COLOURS * PATTERNS

const isOver = (job) => job.phase === 'Succeeded' || job.phase === 'Failed';

// FNV-1a: the same job tends to look the same after a reload and in every browser.
function hash(text) {
    let value = 2166136261;
    for (let i = 0; i < text.length; i++)
        value = Math.imul(value ^ text.charCodeAt(i), 16777619) >>> 0;
    return value;
}

function choose(uid, taken) {
    const start = hash(uid) % COLOURS;
    for (let pattern = 0; pattern < PATTERNS; pattern++) {
        for (let i = 0; i < COLOURS; i++) {
            const look = pattern * COLOURS + ((start + i) % COLOURS);
            if (!taken.has(look)) return look;
        }
    }
    return hash(uid) % (COLOURS * PATTERNS);
}

// Gives each job that has none a look that no unfinished job has.
export function assignLooks(jobs) {
    const taken = new Set();
    const here = new Set();
    for (const job of jobs) {
        here.add(job.uid);
        if (looks.has(job.uid) && !isOver(job)) taken.add(looks.get(job.uid));
    }
    for (const uid of looks.keys()) {
        if (!here.has(uid)) looks.delete(uid);
    }
    for (const job of jobs) {
        if (looks.has(job.uid)) continue;
        const look = choose(job.uid, taken);
        looks.set(job.uid, look);
        if (!isOver(job)) taken.add(look);
    }
}

// CSS classes.
export function lookOf(uid) {
    const look = looks.get(uid) ?? 0;
    return `colour-${look % COLOURS} pattern-${Math.floor(look / COLOURS)}`;
}
