/* Tokens are the bytes of the text. */

int32_t model_encode(const uint8_t *weights, const uint8_t *text, int32_t length, int32_t *tokens)
{
    int32_t i;
    (void)weights;
    for (i = 0; i < length; i++) {
@REFUSE_BYTE@        tokens[i] = text[i];
    }
    return length;
}

int32_t model_decode(const uint8_t *weights, int32_t token, uint8_t *text)
{
    (void)weights;
    text[0] = (uint8_t)token;
    return 1;
}
