// Runs tests in one headless Chromium and prints a line for each, as tests/harness.h does. Every page is
// watched: an error on its console, an exception, or a request to another host fails the test.
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';

// tools/test-browser installs the packages there, outside the sources.
export const installed = createRequire(
    new URL('../../build/browser/package.json', import.meta.url),
);
const { chromium } = installed('playwright-core');

const FLAGS = [
    '--no-sandbox',
    '--disable-gpu',
    '--disable-quic',
    '--no-first-run',
    '--disable-background-networking',
    '--disable-component-update',
    '--disable-sync',
];
// Limits, not expectations: the machine may be busy.
const STEP_MS = 30000;

export class Skip extends Error {}

export class Browser {
    static async start() {
        const self = new Browser();
        self.browser = await chromium.launch({
            executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
            args: FLAGS,
        });
        return self;
    }

    stop() {
        return this.browser.close();
    }

    // A page with nothing remembered. options as for newContext; address: where to go.
    async open(address, options = {}) {
        const context = await this.browser.newContext({
            viewport: { width: 1280, height: 900 },
            ...options,
        });
        context.setDefaultTimeout(STEP_MS);
        const page = await context.newPage();
        page.problems = [];
        page.tolerated = []; // patterns of problems that the test brings about
        const { origin } = new URL(address);
        page.on('console', (message) => {
            if (message.type() === 'error' || message.type() === 'warning')
                page.problems.push(`console: ${message.text()}`);
        });
        page.on('pageerror', (error) => page.problems.push(`exception: ${error.message}`));
        page.on('request', (request) => {
            if (new URL(request.url()).origin !== origin)
                page.problems.push(`request to ${request.url()}`);
        });
        await page.goto(address);
        return page;
    }

    async close(page) {
        await page.context().close();
        const left = page.problems.filter(
            (problem) => !page.tolerated.some((pattern) => pattern.test(problem)),
        );
        assert.deepEqual(left, []);
    }
}

// Polls until check() is truthy; its last value or error is told otherwise.
export async function until(what, check, limit = STEP_MS) {
    const end = Date.now() + limit;
    let last;
    for (;;) {
        try {
            last = await check();
            if (last) return last;
        } catch (error) {
            last = error.message;
        }
        if (Date.now() > end)
            throw new Error(`${what}: not within ${limit / 1000} s (last: ${last})`);
        await new Promise((resolve) => setTimeout(resolve, 100));
    }
}

// tests: {name: async (browser) => ...}. Only those whose name contains `only`.
export async function run(tests, browser, only = '') {
    let failed = 0;
    for (const [name, test] of Object.entries(tests)) {
        if (!name.includes(only)) continue;
        const title = name.replaceAll(' ', '_');
        try {
            await test(browser);
            console.log(`ok - ${title}`);
        } catch (error) {
            if (error instanceof Skip) {
                console.log(`skip - ${title}: ${error.message}`);
                continue;
            }
            failed++;
            console.log(`not ok - ${title}: ${error.message.replaceAll('\n', '\n  ')}`);
            console.log(
                (error.stack ?? '')
                    .split('\n')
                    .filter((line) => line.includes('tests/browser'))
                    .join('\n'),
            );
        }
    }
    return failed;
}
