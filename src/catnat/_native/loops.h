// The tree walked on a CPU: rows of K-1 scores to log p of all K classes, and gradients back; in float32 and float64.
//
// A node is its logit z: it goes right with a = sigmoid(z) and left with 1 - a. Node i has its children at places 2i
// and 2i+1, in every tree. Flat loops over the nodes of some rows become vector code; short ones follow a row's tree.
//
// These are plain loops over plain memory, and compiled for speed. What a framework wants is in a file of its
// own: PyTorch's headers alone take a compiler a quarter of a minute, and it would spend as long again on making them
// fast.

#pragma once

#include <cstdint>

constexpr int64_t BLOCK = 1024;      // nodes that a flat loop takes at once: they stay in the nearest cache
constexpr int SHORT = 8, LONG = 11;  // coefficients of the natural activation's fit: of the default, and at most

enum Kind { SIGMOID, FITTED, FITTED_LONG, NATURAL };  // the curve by a polynomial, or by the library's functions

struct Level { int64_t low, high; };  // the first and past the last node

template <class T> struct Settings {  // of one tree; the tables are the caller's
  int64_t K;
  Kind kind;
  T gain, joint, steepest;  // z follows the natural curve in y = gain x + shift up to the joint, and then a straight line
  const float* fit;         // LONG coefficients
  const T* shifts;          // of the nodes of as many rows as are taken at once
  int64_t shift_count;
  const Level* levels;
  int64_t depth;
  const int32_t *node_places, *class_places;  // of nodes 1 to N and of classes; null where i is at i, and k at K + k
  int64_t N = K - 1, rows_at_once = shift_count / N;
};

struct Mask {  // of rows; without bytes all classes are allowed
  const uint8_t* bytes;  // 0 or not; bytes become numbers in vector code, bools do not
  int64_t stride;        // from row to row: 0 where one mask is for all
};

// log p [rows, K] of scores x [rows, N].
template <class T> void value(const Settings<T>&, int64_t rows, const T* x, Mask, T* log_p);

// dx [rows, N] from the gradient in log p; log p itself is read where there is a mask.
template <class T>
void gradient(const Settings<T>&, int64_t rows, const T* x, Mask, const T* log_p, const T* of_log_p, T* dx);
