/* Without a tokenizer, a text is the numbers of its tokens. */

int32_t model_encode(const uint8_t *weights, const uint8_t *text, int32_t length, int32_t *tokens)
{
    int32_t count = 0, digits = 0, token = 0, i;
    (void)weights;
    for (i = 0; i <= length; i++) {
        if (i < length && text[i] >= '0' && text[i] <= '9') {
            token = 10 * token + (text[i] - '0');
            if (++digits > 9)
                return -1;
        } else if (i < length && text[i] != ' ' && (text[i] < '\t' || text[i] > '\r')) {
            return -1;
        } else if (digits > 0) {
            if (token >= MODEL_RESULTS)
                return -1;
            tokens[count++] = token;
            token = digits = 0;
        }
    }
    return count;
}

int32_t model_decode(const uint8_t *weights, int32_t token, uint8_t *text)
{
    int32_t unit = 1, length = 0;
    (void)weights;
    while (token / unit > 9)
        unit *= 10;
    text[length++] = ' ';
    for (; unit > 0; unit /= 10)
        text[length++] = (uint8_t)('0' + token / unit % 10);
    return length;
}
