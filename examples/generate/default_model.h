// SPDX-License-Identifier: Apache-2.0
// The model that the program carries, model/psalter-2m.gguf: it runs wherever it is moved.
#ifndef GENERATE_DEFAULT_MODEL_H_
#define GENERATE_DEFAULT_MODEL_H_

extern const unsigned char default_model[], default_model_end[];

#endif
