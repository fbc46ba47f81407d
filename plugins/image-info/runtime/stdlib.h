// The functions that the generated code and a small handler need. There is no C library in the sandbox.
#ifndef STDLIB_H
#define STDLIB_H

#include <stddef.h>

void *malloc(size_t size);
void *calloc(size_t count, size_t size);
void *realloc(void *block, size_t size);
// Does nothing: all blocks of a task are freed together after it.
void free(void *block);
// Ends the attempt as a trap.
_Noreturn void abort(void);

#endif
