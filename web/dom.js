// Views are functions from state to a tree of elements; patch makes the page look like that tree while
// keeping the elements that are there, and with them focus, selection, scrolling and hover. Because
// elements are kept, handlers are not attached to them: they name an action (data-act) that app.js
// handles for the whole page.

// An element. Values of props become attributes (null and false: none, true: empty); children are
// elements or text. Text is always a text node: nothing that a server says is ever parsed as HTML.
export function h(tag, props, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(props ?? {})) {
        if (value !== null && value !== undefined && value !== false)
            element.setAttribute(name, value === true ? '' : String(value));
    }
    append(element, children);
    return element;
}

function append(element, children) {
    for (const child of children.flat(Infinity)) {
        if (child !== null && child !== undefined && child !== false)
            element.append(child instanceof Node ? child : String(child));
    }
}

export function s(tag, props, ...children) {
    const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
    for (const [name, value] of Object.entries(props ?? {})) {
        if (value !== null && value !== undefined) element.setAttribute(name, String(value));
    }
    append(element, children);
    return element;
}

export const byId = (id) => document.getElementById(id);

// Only touches the page when the text differs, so that a live region speaks of changes alone.
export function setText(element, text) {
    if (element.textContent !== text) element.textContent = text;
}

function patchAttributes(old, wanted) {
    for (const { name } of [...old.attributes]) {
        if (!wanted.hasAttribute(name)) old.removeAttribute(name);
    }
    for (const { name, value } of wanted.attributes) {
        if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
}

const keyOf = (node) =>
    node.nodeType === Node.ELEMENT_NODE ? node.getAttribute('data-key') : null;

const alike = (a, b) =>
    a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);

// Makes the children of old those of wanted (whose nodes are used up). Children with a data-key are
// matched by it, others by their place.
export function patch(old, wanted) {
    const keyed = new Map();
    for (const child of old.childNodes) {
        if (keyOf(child) !== null) keyed.set(keyOf(child), child);
    }
    let place = old.firstChild;
    for (const child of [...wanted.childNodes]) {
        const key = keyOf(child);
        let match = key === null ? place : keyed.get(key);
        if (!match || !alike(match, child)) {
            old.insertBefore(child, place);
            continue;
        }
        if (match === place) place = place.nextSibling;
        else old.insertBefore(match, place);
        if (match.nodeType === Node.TEXT_NODE) {
            if (match.data !== child.data) match.data = child.data;
        } else {
            patchAttributes(match, child);
            patch(match, child);
        }
    }
    while (place) {
        const next = place.nextSibling;
        place.remove();
        place = next;
    }
}

// patch for a container that keeps its own attributes.
export function show(container, ...children) {
    const wanted = document.createElement('div');
    append(wanted, children);
    patch(container, wanted);
}
