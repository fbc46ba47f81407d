// Reads the headers of image files.
//
// In: bytes that anybody may have made. Out: format, width and height, or the reason why not. The code reads
// no byte before it knows that the byte is there. It compares each length in a file with the number of bytes
// that are left, and never adds lengths first, because a sum could wrap around.

#include "image.h"

#include <stdbool.h>
#include <string.h>

static const char *const CUT_OFF = "ends within the header of an image";
static const char *const DAMAGED = "is an image with a damaged header";

// The rest of a file.
struct rest {
  const uint8_t *at;
  size_t length;
};

// Takes the next bytes; NULL if there are fewer.
static const uint8_t *take(struct rest *rest, size_t count) {
  if (rest->length < count) return NULL;
  const uint8_t *taken = rest->at;
  rest->at += count;
  rest->length -= count;
  return taken;
}

// Takes this text, if it comes next.
static bool skip(struct rest *rest, const char *text, size_t count) {
  if (rest->length < count || memcmp(rest->at, text, count) != 0) return false;
  return take(rest, count) != NULL;
}

static uint32_t big16(const uint8_t *at) { return (uint32_t)at[0] << 8 | at[1]; }
static uint32_t big32(const uint8_t *at) { return big16(at) << 16 | big16(at + 2); }
static uint32_t little16(const uint8_t *at) { return (uint32_t)at[1] << 8 | at[0]; }
static uint32_t little24(const uint8_t *at) { return (uint32_t)at[2] << 16 | little16(at); }
static uint32_t little32(const uint8_t *at) { return little16(at + 2) << 16 | little16(at); }

// After the signature come the length and the name of the first chunk, which must be IHDR, and then its
// content.
static const char *read_png(struct rest rest, struct image *image) {
  const uint8_t *chunk = take(&rest, 16);
  if (chunk == NULL) return CUT_OFF;
  if (big32(chunk) != 13 || memcmp(chunk + 4, "IHDR", 4) != 0) return DAMAGED;
  image->width = big32(chunk + 8);
  image->height = big32(chunk + 12);
  return NULL;
}

static const char *read_gif(struct rest rest, struct image *image) {
  const uint8_t *screen = take(&rest, 4);
  if (screen == NULL) return CUT_OFF;
  image->width = little16(screen);
  image->height = little16(screen + 2);
  return NULL;
}

// After the start of the image come segments, each with its length. The size is in the frame's segment, which
// may come after a preview or a profile.
static const char *read_jpeg(struct rest rest, struct image *image) {
  for (;;) {
    const uint8_t *byte = take(&rest, 1);
    if (byte == NULL) return CUT_OFF;
    if (*byte != 0xFF) return DAMAGED;
    // Any number of these bytes may stand in front of a marker.
    do {
      byte = take(&rest, 1);
      if (byte == NULL) return CUT_OFF;
    } while (*byte == 0xFF);
    uint8_t marker = *byte;
    if (marker == 0x01 || (marker >= 0xD0 && marker <= 0xD7)) continue; // has no length
    // The image or its data ends here, before any frame.
    if (marker == 0x00 || marker == 0xD8 || marker == 0xD9 || marker == 0xDA) return DAMAGED;
    const uint8_t *length = take(&rest, 2);
    if (length == NULL) return CUT_OFF;
    // The length includes itself.
    if (big16(length) < 2) return DAMAGED;
    size_t size = big16(length) - 2;
    bool is_frame = marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
    if (is_frame && size < 5) return DAMAGED;
    const uint8_t *segment = take(&rest, is_frame ? 5 : size);
    if (segment == NULL) return CUT_OFF;
    if (is_frame) {
      image->height = big16(segment + 1);
      image->width = big16(segment + 3);
      return NULL;
    }
  }
}

// After `RIFF`, the file's length and `WEBP`, the first chunk shows which of three kinds it is.
static const char *read_webp(struct rest rest, struct image *image) {
  const uint8_t *chunk = take(&rest, 8);
  if (chunk == NULL) return CUT_OFF;
  if (memcmp(chunk, "VP8X", 4) == 0) {
    const uint8_t *data = take(&rest, 10);
    if (data == NULL) return CUT_OFF;
    image->width = little24(data + 4) + 1;
    image->height = little24(data + 7) + 1;
    return NULL;
  }
  if (memcmp(chunk, "VP8L", 4) == 0) {
    const uint8_t *data = take(&rest, 5);
    if (data == NULL) return CUT_OFF;
    if (data[0] != 0x2F) return DAMAGED;
    image->width = (little32(data + 1) & 0x3FFF) + 1;
    image->height = (little32(data + 1) >> 14 & 0x3FFF) + 1;
    return NULL;
  }
  if (memcmp(chunk, "VP8 ", 4) == 0) {
    const uint8_t *data = take(&rest, 10);
    if (data == NULL) return CUT_OFF;
    bool is_key_frame = (data[0] & 1) == 0;
    if (!is_key_frame || memcmp(data + 3, "\x9D\x01\x2A", 3) != 0) return DAMAGED;
    image->width = little16(data + 6) & 0x3FFF;
    image->height = little16(data + 8) & 0x3FFF;
    return NULL;
  }
  return DAMAGED;
}

const char *image_read(const uint8_t *bytes, size_t length, struct image *image) {
  struct rest rest = {bytes, length};
  const char *problem;
  if (skip(&rest, "\x89PNG\r\n\x1A\n", 8)) {
    image->format = "png";
    problem = read_png(rest, image);
  } else if (skip(&rest, "GIF87a", 6) || skip(&rest, "GIF89a", 6)) {
    image->format = "gif";
    problem = read_gif(rest, image);
  } else if (skip(&rest, "\xFF\xD8", 2)) {
    image->format = "jpeg";
    problem = read_jpeg(rest, image);
  } else if (length >= 12 && memcmp(bytes + 8, "WEBP", 4) == 0 && skip(&rest, "RIFF", 4)) {
    take(&rest, 8);
    image->format = "webp";
    problem = read_webp(rest, image);
  } else {
    return length == 0 ? "is empty" : "is not a PNG, JPEG, GIF or WebP image";
  }
  if (problem != NULL) return problem;
  // A JPEG may give its height at the end of its data.
  return image->width == 0 || image->height == 0 ? "is an image whose header does not tell its size" : NULL;
}
