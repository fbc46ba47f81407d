// Memory for one task: blocks are allocated one after the other, and all of them are freed together after the
// task.
//
// This is fast, and no block can leak. But a handler that allocates and frees much in one task needs a real
// allocator. A handler that keeps data for later tasks (`instance = { warm = … }`) must keep it in a
// variable, not in a block.

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 16, PAGE = 65536 };

// The linker defines this: the end of stack and variables.
extern unsigned char __heap_base;

// The header in front of each block.
union header {
  size_t size;
  unsigned char space[ALIGNMENT];
};

// The start of the next block; 0 before the first one.
static uintptr_t next;

void *malloc(size_t size) {
  if (next == 0) next = ((uintptr_t)&__heap_base + ALIGNMENT - 1) & ~(uintptr_t)(ALIGNMENT - 1);
  // The sums have 64 bits, because 32 bits could wrap around.
  uint64_t end = ((uint64_t)next + sizeof(union header) + size + ALIGNMENT - 1) & ~(uint64_t)(ALIGNMENT - 1);
  if (end > SIZE_MAX) return NULL;
  uint64_t there = (uint64_t)__builtin_wasm_memory_size(0) * PAGE;
  // The host refuses when the plugin's memory is used up.
  if (end > there) {
    uint64_t pages = (end - there + PAGE - 1) / PAGE;
    if (__builtin_wasm_memory_grow(0, (size_t)pages) == SIZE_MAX) return NULL;
  }
  union header *header = (union header *)next;
  header->size = size;
  next = (uintptr_t)end;
  return header + 1;
}

void *calloc(size_t count, size_t size) {
  size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes)) return NULL;
  void *block = malloc(bytes);
  // The block may hold data of another task.
  return block == NULL ? NULL : memset(block, 0, bytes);
}

void *realloc(void *block, size_t size) {
  if (block == NULL) return malloc(size);
  size_t known = ((union header *)block - 1)->size;
  if (size <= known) return block;
  void *larger = malloc(size);
  return larger == NULL ? NULL : memcpy(larger, block, known);
}

void free(void *block) { (void)block; }

void abort(void) { __builtin_trap(); }

// The host calls this when it has read the result. The generated function, which is weak, would free each
// block.
__attribute__((__export_name__("cabi_post_tqhost:handler/handler@0.1.0#handle"))) void
__wasm_export_exports_tqhost_handler_handler_handle_post_return(unsigned char *result) {
  (void)result;
  next = 0;
}
