// What an image file says of itself in its first bytes. Knows nothing of tasks.
#ifndef IMAGE_H
#define IMAGE_H

#include <stddef.h>
#include <stdint.h>

struct image {
  const char *format; // "png", "jpeg", "gif" or "webp"
  uint32_t width;     // pixels, never 0
  uint32_t height;
};

// Reads the header of a PNG, JPEG, GIF or WebP image. The bytes may end anywhere after it. Gives NULL, or why it cannot be read: a text to
// follow the name of what was read.
const char *image_read(const uint8_t *bytes, size_t length, struct image *image);

#endif
