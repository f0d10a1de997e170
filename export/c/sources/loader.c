
static uint8_t model_weights[MODEL_WEIGHTS + 1];

static int load(void)
{
    FILE *file = fopen("model.bin", "rb");
    const size_t size = file ? fread(model_weights, 1, sizeof model_weights, file) : 0;
    if (file)
        fclose(file);
    if (size == MODEL_WEIGHTS)
        return 1;
    fprintf(stderr, "@NAME@: model.bin: %s\n", !file ? "cannot read the weights" :
            size ? "not the weights of this model: another number of bytes" : "empty");
    return 0;
}
