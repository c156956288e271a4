#include "replay.h"

#include "cli.h"
#include "term.h"

#include "adaptdl/snapshot.h"
#include "base/buf.h"
#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_MAX = 1 << 30 };

static void print_jobs(const adl_snapshot *snapshot, const adl_decision *decision)
{
    static const char *const heads[] = {"Job", "Had", "Gets", "On", "Why"};
    term_table table;
    char text[512];
    table_init(&table, 5, heads);
    for (int j = 0; j < snapshot->job_count; j++) {
        const adl_job_decision *now = &decision->jobs[j];
        adli_buf on;
        adli_buf_init(&on, 1 << 16);
        for (int i = 0, next; i < now->replicas; i = next) {
            for (next = i + 1; next < now->replicas && now->nodes[next] == now->nodes[i];)
                next++;
            adli_buf_printf(&on, "%s%s x%d", i ? ", " : "", snapshot->nodes[now->nodes[i]].name,
                            next - i);
        }
        table_put(&table, "%s", snapshot->jobs[j].name);
        table_put(&table, "%d", snapshot->jobs[j].replicas);
        table_put(&table, "%d", now->replicas);
        table_put(&table, "%s", on.length ? on.data : "-");
        table_put(&table, "%s", adl_decision_explain(snapshot, decision, j, text, sizeof text));
        adli_buf_fini(&on);
    }
    table_print(&table, stdout);
    table_fini(&table);
}

static adl_status write_json(const adl_snapshot *snapshot, const adl_decision *decision,
                             const char *path)
{
    char *text;
    adl_status status = adl_decision_write(snapshot, decision, &text);
    if (status == ADL_OK && strcmp(path, "-") == 0)
        puts(text);
    else if (status == ADL_OK)
        status = adli_file_write(path, text, strlen(text));
    free(text);
    return status;
}

/* Is it what was decided then? Not asked when the user changed the rules. */
static int compare(const adl_record *record, const adl_decision *decision, bool same_rules,
                   FILE *out)
{
    int job = adl_record_difference(record, decision);
    if (!same_rules || !adl_record_decided(record))
        return EXIT_DONE;
    if (job < 0) {
        fprintf(out, "the same decision as then\n");
        return EXIT_DONE;
    }
    return problem("sim", EXIT_PROBLEM,
                   "not what was decided then, job %s for one; a policy that searches "
                   "(pollux) starts from what it remembers",
                   adl_record_snapshot(record)->jobs[job].name);
}

static adl_status decide(const adl_record *record, const char *name,
                         const adli_sim_setting *settings, int setting_count,
                         adl_decision *decision)
{
    adl_policy *policy = NULL;
    adl_status status = adl_record_policy(record, name, &policy);
    for (int i = 0; status == ADL_OK && i < setting_count; i++)
        status = adl_policy_set(policy, settings[i].parameter, settings[i].value);
    if (status == ADL_OK)
        status = adl_policy_decide(policy, adl_record_snapshot(record), decision);
    adl_policy_free(policy);
    return status;
}

int replay(const char *path, const char *policy, const adli_sim_setting *settings,
           int setting_count, const char *json)
{
    adl_record *record = NULL;
    adl_decision decision = {0};
    adli_buf content;
    int result = EXIT_DONE;
    adli_buf_init(&content, FILE_MAX);
    adl_status status = adli_file_read(path, &content);
    if (status == ADL_OK)
        status = adl_record_parse(content.data ? content.data : "", content.length, &record);
    if (status == ADL_OK)
        status = decide(record, policy, settings, setting_count, &decision);
    bool only_json = json && strcmp(json, "-") == 0;
    if (status == ADL_OK && !only_json)
        print_jobs(adl_record_snapshot(record), &decision);
    if (status == ADL_OK && json)
        status = write_json(adl_record_snapshot(record), &decision, json);
    if (status == ADL_OK)
        result =
            compare(record, &decision, !policy && setting_count == 0, only_json ? stderr : stdout);
    else
        result = report_error("sim", EXIT_USAGE);
    adl_decision_fini(&decision);
    adl_record_free(record);
    adli_buf_fini(&content);
    return result;
}
