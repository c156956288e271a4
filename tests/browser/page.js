// The page against the mock server: everything that needs no real cluster.
import assert from 'node:assert/strict';
import { Browser, Skip, installed, run, until } from './harness.js';
import { Mock, makeJob } from './mock.js';

const now = () => Date.now() / 1000;

function decision(fields) {
    return {
        round: 12,
        time: now() - 30,
        job: 'default/mnist',
        before: ['node-0'],
        after: ['node-0', 'node-1'],
        speedup: 1.74,
        restartCost: 0.02,
        reason: 'grew',
        text: 'has 2 of 4 wanted: +2 would give 1.21x',
        ...fields,
    };
}

function sample(i, fields) {
    return {
        time: now() - 200 + 2 * i,
        phase: i < 3 ? 'Starting' : 'Running',
        replicas: i < 50 ? 1 : 2,
        batchSize: i < 3 ? null : 64 * (1 + (i >= 50)),
        throughput: i < 3 ? null : 1000 + i,
        efficiency: 0.9,
        goodput: 900 + i,
        progress: 10 * i,
        ...fields,
    };
}

async function usual(options) {
    const mock = await new Mock(options).start();
    mock.jobs = [
        makeJob('mnist', {
            allocation: ['node-0', 'node-1'],
            group: 2,
            restarts: 1,
            created: now() - 100,
        }),
        makeJob('alpha', { created: now() - 50 }),
        makeJob('done', { phase: 'Succeeded', completed: now() - 10 }),
    ];
    mock.decisions = [
        decision(),
        decision({ round: 11, after: ['node-0'], reason: 'kept', text: 'nothing better' }),
    ];
    mock.samples = Array.from({ length: 100 }, (_, i) => sample(i));
    mock.event('JobPhase', 'default/mnist', 'Running');
    return mock;
}

// A test with a mock and a page on it.
const withPage =
    (body, { mock: mockOptions, page: pageOptions, hash = '' } = {}) =>
    async (browser) => {
        const mock = await usual(mockOptions);
        try {
            const page = await browser.open(mock.url + hash, pageOptions);
            await page
                .getByRole('status')
                .filter({ hasText: /live|polling/ })
                .waitFor();
            await body(page, mock);
            await browser.close(page);
        } finally {
            mock.stop();
        }
    };

const cells = (page) => page.locator('a.cell');
const jobRow = (page, name) =>
    page.getByRole('row').filter({ has: page.getByRole('rowheader', { name, exact: true }) });
const overflow = (page) =>
    page.evaluate(
        () => document.documentElement.scrollWidth - document.documentElement.clientWidth,
    );
const background = (page) => page.evaluate(() => getComputedStyle(document.body).backgroundColor);

const JOB = '#job=default/mnist';

const tests = {
    'loads with landmarks and no errors': withPage(async (page) => {
        for (const role of ['banner', 'main'])
            assert.equal(await page.getByRole(role).count(), 1, role);
        for (const name of ['Nodes', 'Jobs', 'Decisions'])
            await page.getByRole('region', { name, exact: true }).waitFor();
        assert.equal(await page.getByRole('heading', { level: 1 }).innerText(), 'AdaptDL 0.1.0');
        const header = await page.getByRole('banner').innerText();
        assert.match(
            header.replace(/\s+/g, ' '),
            /policy rank.*next round in \d+ s.*pending 1.*running 1.*succeeded 1/,
        );
    }),

    'the next round counts down': withPage(async (page) => {
        const read = async () =>
            Number(/in (\d+) s/.exec(await page.getByRole('banner').innerText())[1]);
        const first = await read();
        await until('a lower number', async () => (await read()) < first);
    }),

    'a disk that fills up is told before it is full': withPage(async (page, mock) => {
        const disk = page.getByRole('banner').locator('[data-key=disk]');
        assert.equal(await disk.count(), 0);
        const told = async (state, freeBytes, text) => {
            mock.disk = { state, freeBytes, sizeBytes: 2e12 };
            mock.event('Round', '', 'a round');
            await until(text, async () => (await disk.allInnerTexts()).join().includes(text));
        };
        await told('low', 300 * 2 ** 20, 'almost full, 300 MiB free');
        await told('full', 5 * 2 ** 20 + 7, 'full, 5 MiB free');
        assert.doesNotMatch(await disk.innerText(), /almost/);
        mock.disk = undefined;
        mock.event('Round', '', 'a round');
        await until('nothing about the disk', async () => (await disk.count()) === 0);
    }),

    'jobs are a table': withPage(async (page) => {
        const table = page.getByRole('table', { name: 'Jobs' });
        const names = await table.getByRole('columnheader').allInnerTexts();
        assert.deepEqual(
            names.map((name) => name.replace(/[▲▼\s]/g, '')),
            [
                'Job',
                'Phase',
                'Replicas',
                'Batch',
                'Throughput',
                'Efficiency',
                'Goodput',
                'Progress',
                'Restarts',
                'Age',
                'Action',
            ],
        );
        const row = (await jobRow(page, 'mnist').innerText()).replace(/\s+/g, ' ');
        assert.match(row, /Running 2\/2 256 5,310 83 % 4,408 30 % 11m \d\ds left/);
        const bar = page.getByRole('progressbar', { name: 'progress of mnist' });
        assert.equal(await bar.evaluate((each) => each.value), 0.3);
        await page
            .getByRole('table', { name: 'Finished' })
            .getByRole('rowheader', { name: 'done' })
            .waitFor();
    }),

    'jobs are sorted and filtered': withPage(async (page) => {
        const table = page.getByRole('table', { name: 'Jobs' });
        const order = async () => (await table.getByRole('rowheader').allInnerTexts()).join();
        assert.equal(await order(), 'mnist,alpha'); // oldest first
        const sort = table.getByRole('button', { name: 'Job' });
        await sort.click();
        assert.equal(await order(), 'alpha,mnist');
        assert.equal(
            await table.getByRole('columnheader', { name: 'Job' }).getAttribute('aria-sort'),
            'ascending',
        );
        await sort.click();
        assert.equal(await order(), 'mnist,alpha');
        assert.equal(
            await table.getByRole('columnheader', { name: 'Job' }).getAttribute('aria-sort'),
            'descending',
        );
        // A job without a value comes last either way.
        for (let i = 0; i < 2; i++) {
            await table.getByRole('button', { name: 'Goodput' }).click();
            assert.equal(await order(), 'mnist,alpha');
        }
        await page.getByRole('searchbox', { name: 'Filter' }).fill('node-1 run');
        assert.equal(await order(), 'mnist');
        assert.match(await page.getByRole('region', { name: 'Jobs' }).innerText(), /1 of 3 jobs/);
    }),

    'an event updates the page and is spoken': withPage(async (page, mock) => {
        assert.equal(await cells(page).count(), 2);
        mock.jobs[0].allocation = ['node-0', 'node-0', 'node-1'];
        mock.jobs[0].replicas = 3;
        mock.event('JobRescaled', 'default/mnist', '2 -> 3 replicas');
        await until('three cells', async () => (await cells(page).count()) === 3);
        await jobRow(page, 'mnist').getByRole('cell', { name: '2/3' }).waitFor();
        const news = page.getByRole('log', { name: 'Changes' });
        assert.equal(await news.getAttribute('aria-live'), 'polite');
        await news.getByText('default/mnist: 2 -> 3 replicas').waitFor();
    }),

    'focus survives updates': withPage(async (page, mock) => {
        await page.getByRole('button', { name: 'Delete mnist' }).focus();
        mock.jobs.unshift(makeJob('first', { created: now() - 1000 }));
        mock.event('JobCreated', 'default/first', 'created');
        await jobRow(page, 'first').waitFor();
        assert.equal(
            await page.evaluate(() => document.activeElement.getAttribute('aria-label')),
            'Delete mnist',
        );
    }),

    'polls where nothing can be streamed': withPage(
        async (page, mock) => {
            await page.getByRole('status').filter({ hasText: 'polling' }).waitFor();
            mock.jobs[1].phase = 'Starting';
            await jobRow(page, 'alpha').filter({ hasText: 'Starting' }).waitFor();
        },
        { mock: { stream: false } },
    ),

    'a lost connection is shown and found again': async (browser) => {
        const mock = await usual();
        const page = await browser.open(mock.url);
        page.tolerated.push(/Failed to load resource/);
        const status = page.getByRole('status');
        await status.filter({ hasText: 'live' }).waitFor();
        mock.stop();
        await status.filter({ hasText: 'reconnecting' }).waitFor();
        await jobRow(page, 'mnist').waitFor(); // what was known stays
        const again = await usual();
        again.stop();
        const next = new Mock();
        next.jobs = [makeJob('later', { created: now() })];
        await next.start(mock.port);
        await status.filter({ hasText: 'live' }).waitFor();
        await jobRow(page, 'later').waitFor();
        next.stop();
        await browser.close(page);
    },

    'a hidden tab lets go of its connections': withPage(async (page, mock) => {
        const hide = (hidden) =>
            page.evaluate((value) => {
                Object.defineProperty(document, 'hidden', { value, configurable: true });
                document.dispatchEvent(new Event('visibilitychange'));
            }, hidden);
        assert.equal(mock.streams.size, 1);
        await page.clock.install();
        await hide(true);
        await page.clock.fastForward(31000);
        await page.getByRole('status').filter({ hasText: 'paused' }).waitFor();
        await until('no stream', () => mock.streams.size === 0);
        mock.jobs[1].phase = 'Starting';
        await hide(false);
        await page.getByRole('status').filter({ hasText: 'live' }).waitFor();
        await jobRow(page, 'alpha').filter({ hasText: 'Starting' }).waitFor();
    }),

    'cells are reached and read by keyboard': withPage(async (page) => {
        const first = page.getByRole('link', { name: /^slot 0: *mnist *, rank 0$/ });
        const second = page.getByRole('link', { name: /^slot 0: *mnist *, rank 1$/ });
        assert.equal(await first.getAttribute('tabindex'), '0');
        assert.equal(await second.getAttribute('tabindex'), '-1');
        await first.focus();
        const tip = page.getByRole('tooltip');
        assert.equal(await tip.innerText(), 'default/mnist · rank 0 · group 2');
        await page.keyboard.press('ArrowRight');
        assert.equal(await tip.innerText(), 'default/mnist · rank 1 · group 2');
        assert.equal(await page.evaluate(() => document.activeElement.tabIndex), 0);
        await page.keyboard.press('Escape');
        assert.equal(await tip.isVisible(), false);
        await page.keyboard.press('Home');
        assert.equal(await first.evaluate((each) => each === document.activeElement), true);
        await page.keyboard.press('Enter');
        await page.getByRole('heading', { name: 'default/mnist' }).waitFor();
        assert.equal(await page.evaluate(() => document.activeElement.id), 'job-title');
        assert.match(await page.title(), /default\/mnist/);
        await page.goBack();
        await page.getByRole('region', { name: 'Nodes' }).waitFor();
    }),

    'hovering a cell shows job and rank': withPage(async (page) => {
        await cells(page).nth(1).hover();
        assert.equal(
            await page.getByRole('tooltip').innerText(),
            'default/mnist · rank 1 · group 2',
        );
        await page.getByRole('heading', { name: 'Nodes' }).hover();
        assert.equal(await page.getByRole('tooltip').isVisible(), false);
    }),

    'a link to a job shows its plots with axes and tables': withPage(
        async (page) => {
            const names = ['Replicas', 'Batch size', 'Speed', 'Statistical efficiency', 'Progress'];
            for (const name of names)
                await page.getByRole('img', { name: new RegExp(`^${name} over time`) }).waitFor();
            const speed = page.getByRole('figure').filter({ hasText: 'Speed' });
            assert.equal(await speed.locator('path.line').count(), 2);
            assert.deepEqual(await speed.locator('text.value').allTextContents(), [
                '0',
                '500',
                '1,000',
                '1,500',
            ]);
            assert.ok((await speed.locator('text.time').count()) >= 2);
            assert.ok(
                (await speed.locator('rect.gap').count()) === 1,
                'the time before the start is shaded',
            );
            const figure = page.getByRole('figure').filter({ hasText: 'Replicas' });
            await figure.getByText('as a table').click();
            await figure.getByRole('row').nth(100).waitFor();
            assert.equal(await figure.getByRole('row').count(), 101);
            assert.match(await figure.getByRole('row').nth(1).innerText(), /Running\s+2/);
        },
        { hash: JOB },
    ),

    'what a job reports has live curves': withPage(
        async (page, mock) => {
            const times = [now() - 60, now() - 40, now() - 20];
            const error = { name: 'valid/error', steps: [1, 2, 3], times, values: [2, 1.5, -0.5] };
            const section = page.getByRole('region', { name: 'Metrics' });
            await page.getByRole('img', { name: /^Replicas over time/ }).waitFor();
            assert.equal(await section.isVisible(), false);
            mock.curves = [error];
            mock.event('JobTrain', 'default/mnist', 'news');
            const curve = section.getByRole('img', { name: /^valid\/error over time.*last -0.5/ });
            await curve.waitFor();
            assert.deepEqual(await section.locator('text.value').allTextContents(), [
                '-1',
                '0',
                '1',
                '2',
            ]);
            const plot = section.getByRole('group', { name: /^valid\/error/ });
            await plot.focus();
            await page.keyboard.press('End');
            assert.match(await plot.locator('.plot-tip').innerText(), /· step 3\n-0.5$/);
            error.steps.push(4);
            error.times.push(now());
            error.values.push(null); // no number
            mock.curves = [{ name: 'accuracy', steps: [4], times: [now()], values: [0.25] }, error];
            mock.event('JobTrain', 'default/mnist', 'news');
            await section.getByRole('img', { name: /^accuracy over time.*last 0.25/ }).waitFor();
            assert.equal(await section.locator('figure').count(), 2);
        },
        { hash: JOB },
    ),

    'plots are read with the arrow keys': withPage(
        async (page) => {
            await page.getByRole('img', { name: /^Replicas over time.*last 2/ }).waitFor();
            const plot = page.getByRole('group', { name: /^Replicas/ });
            await plot.focus();
            await page.keyboard.press('Home');
            assert.match(await plot.locator('[aria-live]').innerText(), /\d: replicas 1$/);
            await page.keyboard.press('End');
            assert.match(await plot.locator('[aria-live]').innerText(), /\d: replicas 2$/);
            assert.match(await plot.locator('.plot-tip').innerText(), /\n2$/);
        },
        { hash: JOB },
    ),

    'the log keeps the chosen group and goes on after a break': withPage(
        async (page, mock) => {
            const log = page.getByRole('log', { name: 'Log' });
            await log.getByText('hello').waitFor();
            await page.getByText('following').waitFor();
            const group = page.getByRole('combobox', { name: 'Group' });
            await group.selectOption('1');
            mock.jobs[0].group = 3;
            mock.event('JobRescaled', 'default/mnist', 'again');
            await until('a third group', async () => (await group.locator('option').count()) === 4);
            assert.equal(await group.inputValue(), '1');
            await group.selectOption('newest');
            await page.getByText('following').waitFor();
            mock.log = 'hello again\n';
            mock.endLogs();
            await log.getByText('hello again').waitFor();
        },
        { hash: JOB },
    ),

    'a job shows plots, then its log, then why': withPage(
        async (page) => {
            await page.getByRole('img', { name: /^Replicas over time/ }).waitFor();
            const titles = await page.locator('#job-view section:visible h2').allInnerTexts();
            assert.deepEqual(titles.slice(-4), ['Over time', 'Log', 'Decisions', 'Events']);
        },
        { hash: JOB },
    ),

    'a job shows what its replicas use': withPage(
        async (page, mock) => {
            const table = page.getByRole('table', { name: 'Use' });
            assert.equal(await table.isVisible(), false);
            const job = mock.jobs.find((each) => each.name === 'mnist');
            job.use = [
                { rank: 0, cpus: 1.5, memoryBytes: 2 ** 30 },
                { rank: 1, memoryBytes: 3 * 2 ** 20, gpus: 0.25, gpuMemoryBytes: 2 ** 31 },
            ];
            mock.event('JobTrain', 'default/mnist', 'more');
            await table.waitFor();
            const text = async (row) => (await table.getByRole('row').nth(row).innerText()).split(/\s*\t\s*|\n+/);
            assert.deepEqual(await text(0), ['Rank', 'Node', 'Processors', 'Memory', 'GPUs', 'GPU memory']);
            assert.deepEqual(await text(1), ['0', job.allocation[0], '1.5', '1 GiB', '–', '–']);
            assert.equal((await text(2)).slice(2).join(), '–,3 MiB,0.25,2 GiB');
            assert.equal(await overflow(page), 0);
            job.use = [];
            mock.event('JobTrain', 'default/mnist', 'over');
            await until('no table', async () => !(await table.isVisible()));
        },
        { hash: JOB },
    ),

    'the loss is the sixth plot': withPage(
        async (page, mock) => {
            const curve = (name) => ({ name, steps: [1, 2], times: [now() - 9, now()], values: [2, 1] });
            mock.curves = [curve('accuracy'), curve('train_loss')];
            mock.event('JobTrain', 'default/mnist', 'more');
            const plots = page.locator('#plots figure');
            await until('six plots', async () => (await plots.count()) === 6);
            assert.match(await plots.nth(5).innerText(), /train_loss/);
            assert.equal(await page.locator('#metrics figure').count(), 1);
            await page.setViewportSize({ width: 1024, height: 768 });
            const tops = await plots.evaluateAll((all) => all.map((each) => each.getBoundingClientRect().top));
            assert.equal(new Set(tops.map(Math.round)).size, 2, 'two rows of three');
            assert.equal(await overflow(page), 0);
        },
        { hash: JOB },
    ),

    'rounds that kept a job are folded': withPage(
        async (page, mock) => {
            const kept = { before: ['node-0'], after: ['node-0'], reason: 'kept', text: 'nothing better' };
            mock.decisions = [
                decision({ round: 16, ...kept }),
                decision({ round: 15, ...kept }),
                decision({ round: 14, ...kept }),
                decision({ round: 13 }),
                decision({ round: 12, ...kept }),
            ];
            mock.event('Round', '', 'round 16');
            const rows = page.getByRole('table', { name: 'Decisions' }).getByRole('row');
            await until('a head and three rows', async () => (await rows.count()) === 4);
            assert.match(await rows.nth(1).innerText(), /16.*as in the 2 rounds before/s);
            assert.doesNotMatch(await rows.nth(3).innerText(), /rounds before/);
        },
        { hash: JOB },
    ),

    'of a job that is gone one sentence is left': withPage(
        async (page) => {
            await page.getByText('There is no job default/nobody (any more)').waitFor();
            assert.equal(await page.locator('#job-view section:visible').count(), 0);
        },
        { hash: '#job=default/nobody' },
    ),

    'the decision log is told in words': withPage(async (page) => {
        const table = page.getByRole('table', { name: 'Decisions' });
        assert.equal(await table.getByRole('row').count(), 2);
        assert.match(
            await table.innerText(),
            /node-0 → node-0, node-1\s+1.74×\s+grew has 2 of 4 wanted: \+2 would give 1.21x/,
        );
        await page.getByRole('checkbox', { name: 'changes only' }).uncheck();
        await table.getByText('nothing better').waitFor();
    }),

    'hostile text stays text': async (browser) => {
        const mock = await usual();
        const attack = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>';
        mock.log = `before \u001b[31m${attack}\u001b[0m after\n`;
        Object.assign(mock.jobs[0], {
            message: attack,
            reason: 'ReplicaFailed',
            phase: 'Failed',
            completed: now(),
        });
        mock.decisions[0].text = attack;
        mock.nodes[0].deviceType = attack;
        mock.event('ReplicaFailed', 'default/mnist', attack);
        for (const hash of ['', JOB]) {
            const page = await browser.open(mock.url + hash);
            await page.getByText(attack).first().waitFor();
            mock.event('ReplicaFailed', 'default/mnist', attack);
            if (hash) {
                await page
                    .getByRole('log', { name: 'Log' })
                    .getByText(`before ${attack} after`)
                    .waitFor();
                await page
                    .getByRole('region', { name: 'Events' })
                    .getByText(attack)
                    .first()
                    .waitFor();
            }
            await page
                .getByRole('log', { name: 'Changes' })
                .getByText(attack)
                .waitFor({ state: 'attached' });
            assert.equal(await page.locator('img:not([role]), body script').count(), 0);
            assert.equal(await page.evaluate(() => window.hacked), undefined);
            await browser.close(page);
        }
        mock.stop();
    },

    'asks for the token and keeps it in the tab only': async (browser) => {
        const mock = await usual();
        mock.token = 'secret';
        const page = await browser.open(mock.url);
        page.tolerated.push(/status of 401/);
        const dialog = page.getByRole('dialog', { name: 'Token' });
        await dialog.getByText('This server asks for a token.').waitFor();
        await page.keyboard.press('Escape');
        assert.equal(await dialog.isVisible(), true);
        await dialog.getByLabel('Token').fill('wrong');
        await dialog.getByRole('button', { name: 'Connect' }).click();
        await dialog.getByText('did not accept').waitFor();
        await dialog.getByLabel('Token').fill('secret');
        await page.keyboard.press('Enter');
        await jobRow(page, 'mnist').waitFor();
        const kept = await page.evaluate(() => [
            sessionStorage.length,
            localStorage.length,
            document.cookie,
        ]);
        assert.deepEqual(kept, [1, 0, '']);
        await page.reload();
        await jobRow(page, 'mnist').waitFor();
        await page.getByRole('button', { name: 'Forget token' }).click();
        await dialog.getByText('This server asks for a token.').waitFor();
        await browser.close(page);
        mock.stop();
    },

    'a link may bring the token': async (browser) => {
        const mock = await usual();
        mock.token = 'secret';
        const page = await browser.open(`${mock.url}#token=secret`);
        await jobRow(page, 'mnist').waitFor();
        assert.equal(page.url(), mock.url);
        await browser.close(page);
        mock.stop();
    },

    'dark and light follow the system and the switch': withPage(
        async (page) => {
            const dark = await background(page);
            await page.emulateMedia({ colorScheme: 'light' });
            const light = await background(page);
            assert.notEqual(dark, light);
            const theme = page.getByRole('combobox', { name: 'Theme' });
            await theme.selectOption('dark');
            assert.equal(await background(page), dark);
            await page.reload();
            assert.equal(await background(page), dark);
            assert.equal(await theme.inputValue(), 'dark');
            await theme.selectOption('auto');
            assert.equal(await background(page), light);
        },
        { page: { colorScheme: 'dark' } },
    ),

    'fits every width from 320 pixels on': withPage(
        async (page, mock) => {
            const [wide] = mock.jobs;
            wide.message = 'x'.repeat(300);
            wide.created = now() - 86400;
            Object.assign(wide.train, {
                batchSize: 123456,
                throughput: 234567,
                goodput: 198765,
                estimatedFinish: now() + 86399,
            });
            mock.jobs.push(makeJob(`a-${'long-name-'.repeat(5)}z`, { allocation: ['node-0'] }));
            mock.event('JobCreated', 'default/a', 'created');
            await until('the new job', async () => (await cells(page).count()) === 3);
            const fits = async () => {
                for (const width of [320, 360, 480, 640, 800, 1024, 1100, 1101, 1200, 1920]) {
                    await page.setViewportSize({ width, height: 640 });
                    assert.equal(await overflow(page), 0, `at ${width} pixels`);
                }
                await page.setViewportSize({ width: 320, height: 640 });
            };
            await fits();
            // Rows are blocks here, and still rows of a table.
            const table = page.getByRole('table', { name: 'Jobs' });
            await table.getByRole('cell', { name: '2/2' }).waitFor();
            await page.getByRole('link', { name: 'mnist', exact: true }).first().click();
            await page.getByRole('img', { name: /^Replicas over time.*last 2/ }).waitFor();
            await fits();
        },
        { page: { viewport: { width: 320, height: 640 } } },
    ),

    'nothing moves for those who do not want it': async (browser) => {
        const mock = await usual();
        const page = await browser.open(mock.url, { reducedMotion: 'reduce' });
        page.tolerated.push(/Failed to load resource/);
        await jobRow(page, 'mnist').waitFor();
        mock.stop();
        await page.getByRole('status').filter({ hasText: 'reconnecting' }).waitFor();
        assert.equal(await page.evaluate(() => document.getAnimations().length), 0);
        await browser.close(page);
    },

    'a large cluster': async (browser) => {
        const mock = await new Mock({ nodes: 16, slots: 16 }).start();
        mock.jobs = Array.from({ length: 200 }, (_, i) =>
            makeJob(
                `job-${i}`,
                i < 32
                    ? { allocation: Array(8).fill(`node-${i >> 1}`), created: now() - i }
                    : { created: now() - i },
            ),
        );
        const page = await browser.open(mock.url);
        await until('256 cells', async () => (await cells(page).count()) === 256);
        const looks = await page.evaluate(
            () =>
                new Set(
                    [...document.querySelectorAll('#active tr')]
                        .filter((row) => row.textContent.includes('Running'))
                        .map((row) => row.querySelector('.swatch').className),
                ).size,
        );
        assert.equal(looks, 32);
        assert.equal(await page.locator('#active tbody tr').count(), 200);
        await browser.close(page);
        mock.stop();
    },

    'an updated server is pointed out': withPage(async (page, mock) => {
        mock.version = '0.2.0';
        mock.event('Round', null, 'round');
        await page.getByRole('alert').getByText('The server was updated').waitFor();
        await page.getByRole('button', { name: 'Dismiss' }).click();
        assert.equal(await page.getByRole('alert').isVisible(), false);
    }),

    'a refused action says why': withPage(async (page) => {
        page.tolerated.push(/status of 404/);
        await page.getByRole('button', { name: 'Drain node-0' }).click();
        const dialog = page.getByRole('dialog', { name: 'Drain node-0?' });
        await dialog.getByRole('button', { name: 'Drain' }).click();
        await page
            .getByRole('alert')
            .getByText('no such thing: /api/v1/nodes/node-0/drain')
            .waitFor();
    }),

    'cancelling deletes nothing': withPage(async (page, mock) => {
        await page.getByRole('button', { name: 'Delete mnist' }).click();
        const dialog = page.getByRole('dialog', { name: 'Delete default/mnist?' });
        await dialog.getByText('Its replicas are stopped').waitFor();
        await page.keyboard.press('Enter'); // Cancel has the focus
        assert.equal(await dialog.isVisible(), false);
        await page.getByRole('button', { name: 'Delete mnist' }).click();
        await page.keyboard.press('Escape');
        assert.deepEqual(
            mock.requests.filter((each) => each.startsWith('DELETE')),
            [],
        );
    }),

    'event streams are read in any pieces': withPage(async (page) => {
        const found = await page.evaluate(async () => {
            const { eventParser } = await import('/dashboard/api.js');
            const stream =
                ': hello\r\nid: 7\r\nevent: Round\r\ndata: {"a":\r\ndata: 1}\r\n\r\nretry: 5\ndata:x\n\nid: 9\n\ndata: lost';
            const read = (size) => {
                const events = [];
                const feed = eventParser((event) => events.push(event));
                for (let i = 0; i < stream.length; i += size) feed(stream.slice(i, i + size));
                return JSON.stringify(events);
            };
            return [...new Set([1, 2, 3, 5, 7, 11, 1000].map(read))];
        });
        assert.deepEqual(
            found.map((each) => JSON.parse(each)),
            [
                [
                    { id: '7', type: 'Round', data: '{"a":\n1}' },
                    { id: '7', type: 'message', data: 'x' },
                ],
            ],
        );
    }),

    'axes have round numbers': withPage(async (page) => {
        const [values, whole, times] = await page.evaluate(async () => {
            const { valueTicks, timeTicks } = await import('/dashboard/plot.js');
            return [
                [0.83, 1, 4, 7.3, 99, 1234567].map((max) => valueTicks(max, false)),
                valueTicks(1, true),
                timeTicks(1e9 + 7, 1e9 + 607, 6),
            ];
        });
        assert.deepEqual(values[1], [0, 0.5, 1]);
        assert.deepEqual(values[2], [0, 1, 2, 3, 4]);
        assert.deepEqual(values[4], [0, 50, 100]);
        assert.deepEqual(whole, [0, 1]);
        assert.ok(
            [0.83, 1, 4, 7.3, 99, 1234567].every(
                (max, i) => values[i].at(-1) >= max && values[i].length <= 6,
            ),
        );
        assert.ok(times.ticks.length >= 4 && times.ticks.every((tick) => tick % times.step === 0));
    }),
};

// axe-core's rules on both views in both themes, also with a dialog open.
async function axe(browser, hash, scheme) {
    let source;
    try {
        source = installed.resolve('axe-core/axe.min.js');
    } catch {
        throw new Skip('axe-core is not installed');
    }
    const mock = await usual();
    mock.nodes[1].draining = true;
    Object.assign(mock.jobs[2], {
        phase: 'Failed',
        reason: 'ReplicaFailed',
        message: 'rank 0 exited with 1',
    });
    const page = await browser.open(mock.url + hash, { colorScheme: scheme, bypassCSP: true });
    await page.getByText(hash ? 'nothing better' : 'has 2 of 4 wanted').waitFor();
    await page.addScriptTag({ path: source });
    const check = async () =>
        (await page.evaluate(() => globalThis.axe.run())).violations.map(
            ({ id, nodes }) => `${id}: ${nodes.map((node) => node.html).join(' | ')}`,
        );
    assert.deepEqual(await check(), []);
    await page
        .getByRole('button', { name: /^Delete/ })
        .first()
        .click();
    assert.deepEqual(await check(), []);
    await browser.close(page);
    mock.stop();
}

for (const [view, hash] of [
    ['cluster', ''],
    ['job', JOB],
]) {
    for (const scheme of ['light', 'dark'])
        tests[`axe finds nothing in the ${view} view, ${scheme}`] = (browser) =>
            axe(browser, hash, scheme);
}

const browser = await Browser.start();
const failed = await run(tests, browser, process.argv[2]);
await browser.stop();
process.exit(failed ? 1 : 0);
