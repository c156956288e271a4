/* The CSV reader: what it accepts, and that every refusal names file, line and field. */
#include "harness.h"

#include "base/csv.h"
#include "base/mem.h"

static const char *const columns[] = {"name", "time", "size"};

/* Opens text, reads all rows' time and size, returns the first failure. */
static adl_status read_all(const char *text, int *rows)
{
    adli_csv csv;
    bool more = false;
    double time;
    int size;
    *rows = 0;
    adl_status status =
        adli_csv_open_text(&csv, "f.csv", text, strlen(text), columns, 3, 2 /* size is optional */);
    while (status == ADL_OK && (status = adli_csv_next(&csv, &more)) == ADL_OK && more) {
        status = adli_csv_double(&csv, 1, 0, 1e9, &time);
        if (status == ADL_OK && adli_csv_text(&csv, 2))
            status = adli_csv_int(&csv, 2, 1, 100, &size);
        ++*rows;
    }
    adli_csv_close(&csv);
    return status;
}

TEST(reads_by_column_name)
{
    int rows;
    CHECK_OK(read_all("other,time,name\n1,2.5,a\n3,4,b\n", &rows));
    CHECK_INT(rows, 2);
    CHECK_OK(read_all("\xef\xbb\xbfname,time\r\na,1\r\n\r\n# note\nb,2", &rows));
    CHECK_INT(rows, 2);
    CHECK_OK(read_all("name,time\n", &rows));
    CHECK_INT(rows, 0);
}

TEST(reads_quotes)
{
    adli_csv csv;
    bool more;
    const char *text = "name,time\n\"a, \"\"b\"\"\",\"7\"\n";
    REQUIRE_OK(adli_csv_open_text(&csv, "f.csv", text, strlen(text), columns, 2, 2));
    CHECK_OK(adli_csv_next(&csv, &more));
    CHECK_STR(adli_csv_text(&csv, 0), "a, \"b\"");
    CHECK_STR(adli_csv_text(&csv, 1), "7");
    adli_csv_close(&csv);
}

TEST(refusals_name_the_place)
{
    const struct {
        const char *text, *message;
    } cases[] = {
        {"", "f.csv:1: empty"},
        {"\n\n# only notes\n", "empty"},
        {"name\na\n", "f.csv:1: field \"time\": the column is missing"},
        {"name,time,time\n", "field \"time\": the column appears twice"},
        {"name,time\na\n", "f.csv:2: field \"time\": missing in this row"},
        {"name,time\na,1\nb,x\n", "f.csv:3: field \"time\": \"x\" is not a number"},
        {"name,time\na,\n", "\"\" is not a number"},
        {"name,time\na,1e999\n", "is not a number"},
        {"name,time\na,nan\n", "is not a number"},
        {"name,time\na,-1\n", "f.csv:2: field \"time\": -1 is less than 0"},
        {"name,time,size\na,1,1.5\n", "field \"size\": 1.5 is not a whole number"},
        {"name,time,size\na,1,1000\n", "field \"size\": 1000 is more than 100"},
        {"name,time\n\"a,1\n", "f.csv:2: bad quotes"},
        {"name,time\n\"a\"b,1\n", "f.csv:2: bad quotes"},
        {"\"name,time\n", "bad quotes in the header"},
    };
    int rows;
    for (size_t i = 0; i < ADLI_COUNT(cases); i++)
        CHECK_FAILS(read_all(cases[i].text, &rows), ADL_EINVAL, cases[i].message);
}

TEST(refuses_binary_and_too_many_rows)
{
    adli_csv csv;
    CHECK_FAILS(adli_csv_open_text(&csv, "f.csv", "name,time\na\0b", 13, columns, 2, 2), ADL_EINVAL,
                "NUL byte");
    adli_csv_close(&csv);
    size_t length = 10 + 4 * ((size_t)ADLI_CSV_ROWS_MAX + 1);
    char *text = malloc(length + 1);
    REQUIRE(text);
    strcpy(text, "name,time\n");
    for (size_t at = 10; at < length; at += 4)
        memcpy(text + at, "a,1\n", 4);
    text[length] = '\0';
    int rows;
    CHECK_FAILS(read_all(text, &rows), ADL_EINVAL, "f.csv:1000002: more than 1000000 rows");
    free(text);
}
