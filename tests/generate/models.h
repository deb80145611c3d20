// SPDX-License-Identifier: Apache-2.0
// Where tools/fetch-model.sh puts a model.
#ifndef CLINFER_TESTS_MODELS_H_
#define CLINFER_TESTS_MODELS_H_

const char *smollm2_path(void);

#endif
