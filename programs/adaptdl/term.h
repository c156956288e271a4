/* Output for people: colours where they are wanted, tables, times, and text of others made
 * harmless. */
#ifndef ADAPTDL_TERM_H
#define ADAPTDL_TERM_H

#include "base/buf.h"

#include <stdbool.h>
#include <stdio.h>

/* Text that came from a server or a file, for a terminal: control characters and broken UTF-8
 * become "?", and so do the characters that change the direction of writing. */
void term_clean(adli_buf *out, const char *text, size_t length);
/* The same for one line, to a stream. */
void term_line(FILE *out, const char *text);
/* The same for several lines; those after the first begin with four spaces. */
void term_lines(FILE *out, const char *text);
/* One line, padded to a width and followed by two spaces. */
void term_field(FILE *out, const char *text, size_t width);
/* A job's output, piece by piece: on a terminal newline, tab, carriage return and colours (ESC [
 * ... m) pass, nothing else of the kind; elsewhere every byte. held: what a piece left
 * unfinished; start with {0}, end with a piece of NULL. */
typedef struct term_held {
    char bytes[40];
    size_t length;
} term_held;
void term_log(FILE *out, term_held *held, const char *data, size_t length);

/* May this stream have colours? Not when it is a file, with NO_COLOR, or on a dumb terminal. */
bool term_colours(FILE *out);
typedef enum term_colour { PLAIN, RED, GREEN, YELLOW, BLUE, MAGENTA, CYAN, BOLD, DIM } term_colour;
const char *term_code(term_colour colour, bool wanted); /* "" when not wanted */
term_colour term_phase_colour(const char *phase);

/* A table: cells are added row by row, then it is printed with two spaces between columns. */
enum { TABLE_COLUMNS_MAX = 16 };
typedef struct term_table {
    int columns;
    int least[TABLE_COLUMNS_MAX]; /* width of each column at least */
    char **cells;
    size_t count, capacity;
    int phase_column; /* coloured by its text; -1: none */
    /* Into how many columns of the screen it has to fit, 0: any. For that the first column is shortened, then
     * others are left out: those whose numbers are here, in this order, up to 0. */
    int fit, spare[TABLE_COLUMNS_MAX];
} term_table;

void table_init(term_table *table, int columns, const char *const *heads);
void table_fini(term_table *table);
/* A cell; what does not fit the memory is shown empty. */
void table_put(term_table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));
void table_print(const term_table *table, FILE *out);

/* How many columns a text takes on the screen. */
size_t term_width(const char *text);
/* Appends the text, at most width columns of it: of a longer one the middle is left out. */
void term_shorten(adli_buf *out, const char *text, size_t width);
/* How many columns and lines the screen has; 0: the stream is none, and COLUMNS does not say. lines may be NULL. */
int term_columns(FILE *out, int *lines);

/* "Aug-24 18:47" (UTC), "1 min", "2:05:33", "18:47:03"; "-" for what is not known (NAN). */
enum { TIME_TEXT = 32 };
const char *term_date(double time_s, char *out);
const char *term_clock(double time_s, char *out);
const char *term_minutes(double seconds, char *out);
const char *term_span(double seconds, char *out);
/* "5310", "1.27k": four characters or so. "-" for NAN. */
const char *term_short(double number, char *out);
/* "412M", "1.27G" of 1024 each. "-" for NAN. */
const char *term_bytes(double bytes, char *out);
/* A measured value in four digits: "0.03417"; "nan" when it is not finite. */
const char *term_value(double number, char *out);

#endif
