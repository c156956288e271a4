// Runs before the first paint, so that a chosen theme does not flash. The choice is a preference of this
// browser, hence localStorage; without storage the page follows the system.
(() => {
    let theme = 'auto';
    try {
        theme = localStorage.getItem('adaptdl-theme') ?? 'auto';
    } catch {
        // Storage may be forbidden.
    }
    document.documentElement.dataset.theme = theme;
})();
