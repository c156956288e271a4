/* Failures that would come again are told from those that may not. */
#include "harness.h"

#include "daemon/hopeless.h"

#define PRINT(text) adli_traceback_print(text, sizeof text - 1)

static const char *why(adli_cause cause, int exit_code, double ran_s, const char *output)
{
    adli_failure failure = {cause, exit_code, ran_s, output, strlen(output)};
    const char *text =
        adli_failure_hopeless(&failure, adli_traceback_print(output, strlen(output)), 0);
    return text ? text : "";
}

#define FRAMES                                                                                     \
    "Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\n    go()\n"

TEST(a_program_that_is_not_there_is_hopeless)
{
    CHECK_STR(why(ADLI_CAUSE_CANNOT_RUN, 127, 0, ""), "the program cannot be run");
    CHECK_STR(why(ADLI_CAUSE_CANNOT_RUN, 126, 1000, ""), "the program cannot be run");
    CHECK_STR(why(ADLI_CAUSE_NONE, 127, 1, "sh: 1: trian: not found\n"),
              "the program was not found");
    CHECK_STR(why(ADLI_CAUSE_NONE, 2, 1, "python3: can't open file '/x/y.py': [Errno 2]\n"),
              "the program was not found");
    CHECK_STR(why(ADLI_CAUSE_NONE, 127, 100, ""), ""); /* later it may be anything */
    CHECK_STR(why(ADLI_CAUSE_OOM_KILLED, 137, 1, FRAMES "ImportError: x\n"), "");
}

TEST(imports_that_fail_at_once_are_hopeless)
{
    CHECK_STR(why(ADLI_CAUSE_NONE, 1, 5, FRAMES "ModuleNotFoundError: No module named 'x'\n"),
              "an import failed");
    CHECK_STR(why(ADLI_CAUSE_NONE, 1, 5, FRAMES "ImportError: cannot import name 'x'\r\n\r\n"),
              "an import failed");
    /* what the interpreter says while it ends comes after it */
    CHECK_STR(why(ADLI_CAUSE_NONE, 1, 5, FRAMES "ImportError: x\nleaked semaphore objects\n"),
              "an import failed");
    CHECK_STR(why(ADLI_CAUSE_NONE, 1, 5, "  File \"t.py\", line 1\n    (\n    ^\nSyntaxError: x\n"),
              "the program is not valid Python");
    CHECK_STR(why(ADLI_CAUSE_NONE, 1, 500, FRAMES "ImportError: x\n"), "");
    CHECK_STR(why(ADLI_CAUSE_NONE, 1, 5, FRAMES "RuntimeError: ImportError: x\n"), "");
    /* one that was handled, before another that was not */
    CHECK_STR(why(ADLI_CAUSE_NONE, 1, 5,
                  FRAMES "ImportError: x\n\nDuring handling of the above exception:\n\n" FRAMES
                         "OSError: y\n"),
              "");
}

TEST(the_same_traceback_has_the_same_print)
{
    uint64_t first = PRINT("epoch 1\n" FRAMES "OSError: port 1234 at 0x7f12ab\nbye\n");
    CHECK(first != 0);
    CHECK(PRINT("epoch 2\nmore\n" FRAMES "OSError: port 99 at 0x55aa00") == first);
    CHECK(PRINT(FRAMES "OSError: door 1234 at 0x7f12ab\n") != first);
    CHECK(PRINT("Traceback (most recent call last):\n  File \"train.py\", line 4, in <module>\n"
                "    go()\nOSError: port 1234 at 0x7f12ab\n") != first);
    CHECK(PRINT("") == 0);
    CHECK(PRINT("OSError: port 1234\n") == 0);
    CHECK(PRINT("Traceback (most recent call last):\n  File \"x\"\n") == 0); /* cut off */
    static const char output[] = FRAMES "OSError: x\n";
    adli_failure failure = {ADLI_CAUSE_NONE, 1, 500, output, sizeof output - 1};
    CHECK(adli_failure_hopeless(&failure, 5, 5) != NULL);
    CHECK(adli_failure_hopeless(&failure, 5, 6) == NULL);
    CHECK(adli_failure_hopeless(&failure, 0, 0) == NULL);
}
