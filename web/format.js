// Numbers, times and durations as people read them. Absent values are an en dash.

export const NONE = '–';

const known = (value) => typeof value === 'number' && Number.isFinite(value);

// Three significant digits, thousands grouped; from a million on with a prefix.
export function number(value) {
    if (!known(value)) return NONE;
    const size = Math.abs(value);
    if (size >= 1e6)
        return new Intl.NumberFormat('en', {
            notation: 'compact',
            maximumSignificantDigits: 3,
        }).format(value);
    if (size >= 100 || Number.isInteger(value))
        return new Intl.NumberFormat('en', { maximumFractionDigits: 0 }).format(value);
    return new Intl.NumberFormat('en', { maximumSignificantDigits: 3 }).format(value);
}

export function percent(fraction) {
    return known(fraction)
        ? `${(100 * fraction).toFixed(fraction < 0.0995 && fraction > 0 ? 1 : 0)} %`
        : NONE;
}

export const factor = (value) => (known(value) ? `${value.toFixed(2)}×` : NONE);

export function duration(seconds) {
    if (!known(seconds)) return NONE;
    const total = Math.max(0, Math.round(seconds));
    const two = (value) => String(value).padStart(2, '0');
    if (total < 60) return `${total} s`;
    if (total < 3600) return `${Math.floor(total / 60)}m ${two(total % 60)}s`;
    if (total < 86400) return `${Math.floor(total / 3600)}h ${two(Math.floor(total / 60) % 60)}m`;
    return `${Math.floor(total / 86400)}d ${Math.floor(total / 3600) % 24}h`;
}

export function clock(time) {
    return known(time) ? new Date(1000 * time).toLocaleTimeString('en-GB') : NONE;
}

export function dateTime(time) {
    return known(time) ? new Date(1000 * time).toLocaleString('en-GB') : NONE;
}

// Today's times need no date.
export function when(time, now) {
    if (!known(time)) return NONE;
    const sameDay = new Date(1000 * time).toDateString() === new Date(1000 * now).toDateString();
    return sameDay ? clock(time) : dateTime(time);
}

// What is left of the disk, when that is little.
export const diskText = ({ state, freeBytes }) =>
    `${state === 'full' ? 'full' : 'almost full'}, ${Math.floor(freeBytes / 2 ** 20)} MiB free`;

export const plural = (count, word) => `${count} ${word}${count === 1 ? '' : 's'}`;

// ["a","a","b"] -> "a ×2, b".
export function places(allocation) {
    if (!allocation?.length) return 'none';
    const counts = new Map();
    for (const node of allocation) counts.set(node, (counts.get(node) ?? 0) + 1);
    return [...counts].map(([node, count]) => (count > 1 ? `${node} ×${count}` : node)).join(', ');
}

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];

// Amounts as in the API: cpu in thousandths, memory in bytes.
export function resource(name, amount) {
    if (!known(amount)) return NONE;
    if (name === 'cpu') return number(amount / 1000);
    if (name !== 'memory' && name !== 'ephemeral-storage') return number(amount);
    const unit = amount > 0 ? Math.min(UNITS.length - 1, Math.floor(Math.log2(amount) / 10)) : 0;
    return `${number(amount / 1024 ** unit)} ${UNITS[unit]}`;
}
