// The page on a real cluster: adaptdl-sched, real processes that train, a daemon that is killed. The tests
// share one cluster and run in order.
import assert from 'node:assert/strict';
import { Cluster, missing } from './daemon.js';
import { Browser, run, until } from './harness.js';

const SLOW_MS = 120000; // training on a busy machine
let cluster;
let page;

const status = (text) => page.getByRole('status').filter({ hasText: text });
const row = (name) =>
    page.getByRole('row').filter({ has: page.getByRole('rowheader', { name, exact: true }) });
const cells = () => page.locator('a.cell');
const node = (name) =>
    page.getByRole('listitem').filter({ has: page.getByRole('heading', { name }) });

const tests = {
    'the page is served without a token, the API is not': async () => {
        const index = await fetch(cluster.url);
        assert.equal(index.status, 200);
        assert.match(index.headers.get('content-security-policy'), /^default-src 'self'/);
        assert.equal(index.headers.get('x-content-type-options'), 'nosniff');
        const tag = index.headers.get('etag');
        assert.match(tag, /^"[0-9a-f]{32}"$/);
        assert.equal((await fetch(cluster.url, { headers: { 'If-None-Match': tag } })).status, 304);
        assert.equal((await fetch(`${cluster.url}dashboard/app.js`)).status, 200);
        assert.equal((await fetch(`${cluster.url}dashboard/none.js`)).status, 404);
        assert.equal((await fetch(`${cluster.url}api/v1/cluster`)).status, 401);
    },

    'the token is asked for': async () => {
        const dialog = page.getByRole('dialog', { name: 'Token' });
        await dialog.getByLabel('Token').fill('wrong');
        await page.keyboard.press('Enter');
        await dialog.getByText('did not accept').waitFor();
        await dialog.getByLabel('Token').fill(cluster.token);
        await page.keyboard.press('Enter');
        await status('live').waitFor();
        await page.getByText('2 nodes, 0 of 4 slots in use').waitFor();
        await page.getByText('No jobs yet.').waitFor();
    },

    'a job appears, runs and reports': async () => {
        await cluster.mnist('digits');
        await row('digits').filter({ hasText: 'Running' }).waitFor({ timeout: SLOW_MS });
        await until('a cell', async () => (await cells().count()) >= 1);
        await row('digits').getByRole('progressbar').waitFor({ timeout: SLOW_MS });
        await until(
            'its goodput',
            async () => {
                const { goodput } = (await cluster.job('digits')).train ?? {};
                return goodput > 0;
            },
            SLOW_MS,
        );
    },

    'the page follows when the job rescales': async () => {
        await until('two cells of digits', async () => (await cells().count()) >= 2, SLOW_MS);
        await row('digits')
            .getByRole('cell', { name: /^(\d+)\/\1$/ })
            .waitFor({ timeout: SLOW_MS });
        const job = await cluster.job('digits');
        assert.ok(job.replicas >= 2, `replicas ${job.replicas}`);
        await page
            .getByRole('log', { name: 'Changes' })
            .getByText('default/digits')
            .first()
            .waitFor({ state: 'attached' });
        await page
            .getByRole('table', { name: 'Decisions' })
            .getByRole('link', { name: 'digits' })
            .first()
            .waitFor();
    },

    'the job view has plots, decisions, events and the log': async () => {
        await row('digits').getByRole('link', { name: 'digits' }).click();
        await page.getByRole('heading', { name: 'default/digits' }).waitFor();
        await page
            .getByRole('img', { name: /^Replicas over time.*between 1 and/ })
            .waitFor({ timeout: SLOW_MS });
        await page.getByRole('img', { name: /^Progress over time/ }).waitFor({ timeout: SLOW_MS });
        await page
            .getByRole('log', { name: 'Log' })
            .getByText(/Train Epoch/)
            .waitFor({ timeout: SLOW_MS });
        await page.getByRole('region', { name: 'Events' }).getByText('JobPhase').first().waitFor();
        assert.ok(
            (await page.getByRole('table', { name: 'Decisions' }).getByRole('row').count()) >= 2,
        );
        await page.getByRole('link', { name: '← Cluster' }).click();
        await row('digits').waitFor();
    },

    'a drained node is emptied': async () => {
        const target = await until(
            'a place',
            async () => (await cluster.job('digits')).allocation[0],
        );
        await page.getByRole('button', { name: `Drain ${target}`, exact: true }).click();
        await page.getByRole('dialog').getByRole('button', { name: 'Drain' }).click();
        await node(target).getByText('draining').waitFor();
        await until(
            'no replica there',
            async () => (await node(target).locator('a.cell').count()) === 0,
            SLOW_MS,
        );
        await row('digits').filter({ hasText: 'Running' }).waitFor({ timeout: SLOW_MS });
        await page.getByRole('button', { name: `Undrain ${target}`, exact: true }).click();
        await page.getByRole('button', { name: `Drain ${target}`, exact: true }).waitFor();
        assert.equal(
            (await cluster.api('GET', 'nodes')).items.find((each) => each.name === target).draining,
            false,
        );
    },

    'the page survives a killed daemon': async () => {
        page.tolerated.push(/Failed to load resource/);
        const before = await cluster.job('digits');
        await cluster.kill();
        await status('reconnecting').waitFor();
        await row('digits').waitFor();
        await cluster.run();
        await status('live').waitFor();
        await row('digits').filter({ hasText: 'Running' }).waitFor({ timeout: SLOW_MS });
        assert.equal((await cluster.job('digits')).uid, before.uid);
        // Not only drawn once: news still arrive.
        await cluster.submit('late', ['sleep', '1']);
        await row('late').waitFor();
    },

    'hostile output stays text': async () => {
        const attack = '<img src=x onerror="window.hacked=1">';
        await cluster.submit('hostile', ['sh', '-c', `echo '${attack}'; exit 3`], {
            maxRetries: 0,
        });
        await row('hostile').filter({ hasText: 'Failed' }).waitFor({ timeout: SLOW_MS });
        await row('hostile').getByRole('link').click();
        await page.getByRole('log', { name: 'Log' }).getByText(attack).waitFor();
        await page.locator('#job-message').getByText(attack).waitFor();
        assert.equal(await page.evaluate(() => window.hacked), undefined);
        assert.equal(await page.locator('img').count(), 0);
        await page.goBack();
    },

    'fits 320 pixels': async () => {
        await page.setViewportSize({ width: 320, height: 640 });
        await row('digits').waitFor();
        assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), 320);
        await page.setViewportSize({ width: 1280, height: 900 });
    },

    'a deleted job disappears': async () => {
        await page.getByRole('button', { name: 'Delete digits' }).click();
        await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click();
        await row('digits').waitFor({ state: 'detached', timeout: SLOW_MS });
        const names = (await cluster.api('GET', 'jobs')).items.map((job) => job.name);
        assert.ok(!names.includes('digits'));
        await until('its cells are gone', async () => (await cells().count()) === 0);
    },

    'there were no errors and no requests elsewhere': (browser) => browser.close(page),
};

// The pictures of docs/dashboard.md: a cluster in the middle of its work.
async function screenshots(browser) {
    await cluster.mnist('digits-small', { epochs: 2, examples: 2000 });
    await until(
        'a finished job',
        async () => (await cluster.job('digits-small')).phase === 'Succeeded',
        SLOW_MS,
    );
    for (const name of ['digits', 'digits-wide', 'digits-late']) {
        await cluster.mnist(name, { epochs: 30 });
        await new Promise((resolve) => setTimeout(resolve, 20000));
    }
    await new Promise((resolve) => setTimeout(resolve, 40000));
    const shot = async (name, hash, colorScheme) => {
        const view = await browser.open(`${cluster.url}#token=${cluster.token}`, {
            colorScheme,
            viewport: { width: 1200, height: 820 },
        });
        await view.getByRole('status').filter({ hasText: 'live' }).waitFor();
        await view.evaluate((where) => {
            location.hash = where;
        }, hash);
        await new Promise((resolve) => setTimeout(resolve, 3000));
        await view.screenshot({ path: `docs/images/dashboard-${name}.png` });
        await browser.close(view);
    };
    await shot('light', '', 'light');
    await shot('dark', '#job=default/digits', 'dark');
    console.log('info - screenshots taken');
}

if (missing.length) {
    console.log(`skip - browser_cluster: not built: ${missing.join(', ')}`);
    process.exit(0);
}
const browser = await Browser.start();
cluster = await new Cluster().start();
let failed;
try {
    page = await browser.open(cluster.url);
    page.tolerated.push(/status of 401/);
    failed = await run(tests, browser, process.argv[2]);
    if (process.env.SCREENSHOTS) await screenshots(browser);
} finally {
    await browser.stop();
    await cluster.stop();
}
process.exit(failed ? 1 : 0);
