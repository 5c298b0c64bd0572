#include "http/docs.h"

#include "api/json_write.h"
#include "base/version.h"

/* made by CMakeLists.txt from the files of these names */
extern const unsigned char embedded_openapi_json[], embedded_docs_html[];
extern const unsigned embedded_openapi_json_len, embedded_docs_html_len;

void docs_write_openapi(const char *root_path, struct str *out)
{
    str_adds(out,
             "{\"openapi\":\"3.1.0\",\"info\":{\"title\":\"sluice\",\"version\":\"" SLUICE_VERSION "\"},");
    if (root_path) {
        str_adds(out, "\"servers\":[{\"url\":");
        json_write_text(out, root_path);
        str_adds(out, "}],");
    }
    /* the file is an object: its members follow ours */
    str_add(out, (const char *)embedded_openapi_json + 1, embedded_openapi_json_len - 1);
}

void docs_write_page(struct str *out)
{
    str_add(out, (const char *)embedded_docs_html, embedded_docs_html_len);
}
