// The functions on bytes that compilers and handlers expect. Any C library for wasm32 can replace this file.

#include <string.h>

void *memcpy(void *restrict to, const void *restrict from, size_t count) { return memmove(to, from, count); }

void *memmove(void *to, const void *from, size_t count) {
  unsigned char *target = to;
  const unsigned char *source = from;
  if (target < source) {
    for (size_t n = 0; n < count; n++) target[n] = source[n];
  } else {
    for (size_t n = count; n > 0; n--) target[n - 1] = source[n - 1];
  }
  return to;
}

void *memset(void *to, int byte, size_t count) {
  unsigned char *target = to;
  for (size_t n = 0; n < count; n++) target[n] = (unsigned char)byte;
  return to;
}

int memcmp(const void *a, const void *b, size_t count) {
  const unsigned char *left = a, *right = b;
  for (size_t n = 0; n < count; n++) {
    if (left[n] != right[n]) return left[n] < right[n] ? -1 : 1;
  }
  return 0;
}

size_t strlen(const char *text) {
  size_t length = 0;
  while (text[length] != '\0') length++;
  return length;
}
